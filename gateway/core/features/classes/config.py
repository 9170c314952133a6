"""Settings of the service classes."""

from __future__ import annotations

from msgspec import Struct, field

from gateway.core.vocabulary import ModelName, RequestProfile, ServiceClass

_SECOND_NS = 1_000_000_000


class InteractiveConfig(Struct, frozen=True):
    """Class of requests for which a user waits."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""


class BatchConfig(Struct, frozen=True):
    """Class of requests that use idle capacity in all regions, and yield to interactive ones."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""
    free_share: float = 0.1
    """Share of an engine's room that is kept free for interactive requests."""
    queue_share: float = 0.75
    """Share of `queue.length_max`: above this total queue length, further requests of this class are refused."""
    wait_max_ns: int = 300 * _SECOND_NS
    """Longest wait in the queue, in place of `queue.wait_max`."""
    promotion_ns: int | None = 120 * _SECOND_NS
    """Wait after which a request is served like an interactive one, unless it is a line of a batch. None: it waits for
    room until its queue deadline."""


class BestEffortConfig(Struct, frozen=True):
    """Class of requests that run on idle replicas, or not at all."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""
    queue_share: float = 0.5
    """Share of `queue.length_max`: above this total queue length, further requests of this class are refused."""
    wait_max_ns: int = 60 * _SECOND_NS
    """Longest wait in the queue, in place of `queue.wait_max`."""


class ClassesConfig(Struct, frozen=True):
    """Service classes, with their objectives and their use of shared capacity."""

    interactive: InteractiveConfig = field(default_factory=InteractiveConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    best_effort: BestEffortConfig = field(default_factory=BestEffortConfig)
    interruptions_max: int = 3
    """Times that a running batch or best-effort request is interrupted, and begins anew, for an interactive one that
    finds no free slot; only while its client has nothing of its answer. 0: never."""

    def first_token_ns(self, service_class: ServiceClass) -> int | None:
        """First-token objective of the class."""
        if service_class is ServiceClass.INTERACTIVE:
            return self.interactive.first_token_ns
        return self.batch.first_token_ns if service_class is ServiceClass.BATCH else self.best_effort.first_token_ns

    def queue_share(self, service_class: ServiceClass) -> float:
        if service_class is ServiceClass.INTERACTIVE:
            return 1.0
        return self.batch.queue_share if service_class is ServiceClass.BATCH else self.best_effort.queue_share

    def wait_max_ns(self, service_class: ServiceClass, interactive_ns: int) -> int:
        if service_class is ServiceClass.INTERACTIVE:
            return interactive_ns
        return self.batch.wait_max_ns if service_class is ServiceClass.BATCH else self.best_effort.wait_max_ns

    def promotion_at(self, profile: RequestProfile, now_ns: int) -> int | None:
        """Time at which a request that begins to wait now is served like an interactive one, if it still waits; None:
        never."""
        after_ns = self.batch.promotion_ns
        if profile.service_class is not ServiceClass.BATCH or profile.keeps_yielding or after_ns is None:
            return None
        return now_ns + after_ns

    def by_model(self) -> dict[ModelName, ServiceClass]:
        """Default class of each model that has one."""
        return {
            model: service_class
            for service_class, section in (
                (ServiceClass.BEST_EFFORT, self.best_effort),
                (ServiceClass.BATCH, self.batch),
                (ServiceClass.INTERACTIVE, self.interactive),
            )
            for model in section.models
        }
