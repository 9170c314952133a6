"""How prompts are looked at, where pools are told apart by tokens. It checks, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gateway.config.classifiers import SAMPLED, find_classifier
from gateway.config.plug_ins import PlugInUnusable
from gateway.core.config import ThresholdConfig, TokenBudgetConfig
from gateway.core.vocabulary import Category, TenantName
from gateway.ground.values import SECOND_NS

_IMAGE_TOKENS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ContentConfig:
    classifier: str = SAMPLED
    """What tells the kind of a text, where neither its request nor its tenant does."""
    image_tokens: int = 1024
    """What a picture, a sound or a file in a prompt is taken to come to."""
    tenants: dict[TenantName, Category] = field(default_factory=dict)
    """Of these, all prompts are of one kind, and nobody looks."""
    save_interval_ns: int = 60 * SECOND_NS
    """How soon what is learnt outlives a crash, where there is a `state.folder`."""


def content_faults(content: ContentConfig, budget: TokenBudgetConfig) -> Iterator[tuple[str, str]]:
    """The key, and what is wrong with it."""
    if content.classifier != SAMPLED:
        try:
            find_classifier(content.classifier)
        except PlugInUnusable as error:
            yield "content.classifier", str(error)
    bounds: tuple[tuple[str, float, float, float], ...] = (
        ("content.image_tokens", content.image_tokens, 1, _IMAGE_TOKENS_MAX),
        ("token_budget.ratio_start", budget.ratio_start, 1, 8),
        ("token_budget.decay", budget.decay, 0.5, 0.999),
        ("token_budget.caution", budget.caution, 0, 10),
        ("token_budget.output_share", budget.output_share, 0.01, 0.999),
        ("token_budget.output_start_tokens", budget.output_start_tokens, 1, 1 << 20),
        ("token_budget.tenants_max", budget.tenants_max, 1, 50_000),
    )
    yield from _out_of_bounds(bounds)


def threshold_faults(threshold: ThresholdConfig) -> Iterator[tuple[str, str]]:
    """The key, and what is wrong with it."""
    yield from _out_of_bounds(
        (
            ("threshold.tokens_min", threshold.tokens_min, 16, 1 << 24),
            ("threshold.requests_min", threshold.requests_min, 10, 1_000_000),
            ("threshold.trouble_share", threshold.trouble_share, 0.0001, 0.5),
            ("threshold.late_share", threshold.late_share, 0.0001, 0.9),
            ("threshold.tighten", threshold.tighten, 0.1, 0.99),
            ("threshold.relax", threshold.relax, 1.01, 4),
        )
    )


def _out_of_bounds(bounds: Iterable[tuple[str, float, float, float]]) -> Iterator[tuple[str, str]]:
    for key, number, least, most in bounds:
        if not least <= number <= most:
            yield key, f"{number}: it is {least:,} to {most:,}"
