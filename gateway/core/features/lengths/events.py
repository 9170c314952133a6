"""Event of pools by length, with the values that it carries."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent
from gateway.core.value import value
from gateway.core.vocabulary import Category, ModelName, TenantName


@value
class LearntRatio:
    """Learnt ratio of bytes per token."""

    model: ModelName
    tenant: TenantName
    category: Category
    weight: float
    mean: float
    deviation: float


@value
class LearntLengths:
    """Histogram of the lengths of answers without a maximum; four buckets per doubling."""

    model: ModelName
    category: Category
    counts: tuple[int, ...]


@value
class TokenBudgetSnapshot:
    """All learnt values, oldest first."""

    ratios: tuple[LearntRatio, ...] = ()
    lengths: tuple[LearntLengths, ...] = ()


@value
class TokenBudgetRestored(FeatureEvent):
    """Token-budget estimates learnt before this process began."""

    snapshot: TokenBudgetSnapshot
