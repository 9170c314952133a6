"""Event of pools by length, with the values that it carries."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import Category, ModelName, TenantName


class LearntRatio(Struct, frozen=True):
    """Learnt ratio of bytes per token."""

    model: ModelName
    tenant: TenantName
    category: Category
    weight: float
    mean: float
    deviation: float


class LearntLengths(Struct, frozen=True):
    """Histogram of the lengths of answers without a maximum; four buckets per doubling."""

    model: ModelName
    category: Category
    counts: tuple[int, ...]


class TokenBudgetSnapshot(Struct, frozen=True):
    """All learnt values, oldest first."""

    ratios: tuple[LearntRatio, ...] = ()
    lengths: tuple[LearntLengths, ...] = ()


class TokenBudgetRestored(FeatureEvent, frozen=True):
    """Token-budget estimates learnt before this process began."""

    snapshot: TokenBudgetSnapshot
