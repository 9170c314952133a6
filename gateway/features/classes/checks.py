"""Checks of service classes' settings that one key alone cannot decide."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config import CoreConfig
from gateway.core.vocabulary import ModelName, ServiceClass
from mesh.faults import FileFault

_MODELS_MAX = 1000


def class_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults between settings that decisions depend on."""
    yield from (FileFault(key, what) for key, what in _class_faults(core))


def _class_faults(core: CoreConfig) -> Iterator[tuple[str, str]]:
    classes = core.classes
    named: dict[ModelName, ServiceClass] = {}
    for service_class, models in (
        (ServiceClass.INTERACTIVE, classes.interactive.models),
        (ServiceClass.BATCH, classes.batch.models),
        (ServiceClass.BEST_EFFORT, classes.best_effort.models),
    ):
        if len(models) > _MODELS_MAX:
            yield f"classes.{service_class}.models", f"names more than {_MODELS_MAX:,}"
        for model in models:
            if named.setdefault(model, service_class) is not service_class:
                yield f"classes.{service_class}.models", f"`{model}` is under {named[model]} already"
    batch = classes.batch
    if batch.promotion_ns is not None and batch.promotion_ns >= batch.wait_max_ns:
        yield "classes.batch.promotion", "should be shorter than classes.batch.wait_max, the longest wait"
