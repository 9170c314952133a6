"""Settings for reading prompts: tokens of media parts, and the category of a text where pools are chosen by tokens. The
checks here decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from gateway.config.classifiers import SAMPLED, find_classifier
from gateway.config.names import Model
from gateway.config.plug_ins import PlugInUnusable
from gateway.core.vocabulary import Category, TenantName
from mesh.values import SECOND_NS

_PART_TOKENS_MAX = 100_000


class ModelContentConfig(Struct, frozen=True):
    """Tokens of one media part of each kind, declared for one model."""

    image_tokens: int | None = None
    """Tokens of one image. None: learnt from the usage that engines report."""
    audio_tokens: int | None = None
    """Tokens of one audio part. None: learnt from the usage that engines report."""
    video_tokens: int | None = None
    """Tokens of one video. None: learnt from the usage that engines report."""
    file_tokens: int | None = None
    """Tokens of one file. None: learnt from the usage that engines report."""

    def tokens_of(self, kind: str) -> int | None:
        tokens: int | None = getattr(self, f"{kind}_tokens")
        return tokens


class ContentConfig(Struct, frozen=True):
    """Reading of prompts: tokens of media parts, and the category of a text where pools are chosen by length."""

    classifier: str = SAMPLED
    """Classifier of a text's category, where neither the request nor its tenant names one: built in (`sampled`), or the
    name of a plug-in's."""
    image_tokens: int = 1024
    """Tokens assumed of an image until they are learnt from the usage that engines report."""
    audio_tokens: int = 1024
    """Tokens assumed of an audio part until they are learnt from the usage that engines report."""
    video_tokens: int = 8192
    """Tokens assumed of a video until they are learnt from the usage that engines report."""
    file_tokens: int = 8192
    """Tokens assumed of a file until they are learnt from the usage that engines report."""
    models: dict[Model, ModelContentConfig] = field(default_factory=dict)
    """Declared tokens of media parts, by model; they replace learnt ones."""
    tenants: dict[TenantName, Category] = field(default_factory=dict)
    """Category of all prompts of a tenant, such as `code`; these prompts are not classified."""
    save_interval_ns: int = 60 * SECOND_NS
    """Interval of saving learnt figures to `state.folder`, if there is one."""

    def tokens_of(self, kind: str) -> int:
        tokens: int = getattr(self, f"{kind}_tokens")
        return tokens


def content_faults(content: ContentConfig) -> Iterator[tuple[str, str]]:
    """Faults as (key, message)."""
    if content.classifier != SAMPLED:
        try:
            find_classifier(content.classifier)
        except PlugInUnusable as error:
            yield "content.classifier", str(error)
    bounds: tuple[tuple[str, float, float, float], ...] = (
        *_part_bounds("content", content),
        *(bound for name, each in content.models.items() for bound in _part_bounds(f"content.models.{name}", each)),
    )
    yield from _out_of_bounds(bounds)


def _part_bounds(key: str, told: ContentConfig | ModelContentConfig) -> Iterator[tuple[str, float, float, float]]:
    for kind in ("image", "audio", "video", "file"):
        tokens = told.tokens_of(kind)
        if tokens is not None:
            yield f"{key}.{kind}_tokens", tokens, 1, _PART_TOKENS_MAX


def _out_of_bounds(bounds: Iterable[tuple[str, float, float, float]]) -> Iterator[tuple[str, str]]:
    for key, number, least, most in bounds:
        if not least <= number <= most:
            yield key, f"{number}: it is {least:,} to {most:,}"
