"""Settings of pools by length: the estimate of a request's tokens, and the threshold that tunes itself."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class TokenBudgetConfig(Struct, frozen=True):
    """Parameters of the estimate of a request's tokens (token-budget-aware pool routing, §2.1)."""

    ratio_start: float = 4.0
    """ĉ₀: bytes per token before any answer was counted. CJK text starts at no more than 2."""
    decay: float = 0.95
    """β: weight of the present mean against the next answer; less while few answers are known."""
    caution: float = 1.0
    """γ: number of mean deviations that the estimate's ratio lies below the mean."""
    output_share: float = 0.95
    """Share of earlier answers that were no longer than the estimate, where the client names no maximum."""
    output_start_tokens: int = 1024
    """Estimate of an answer's tokens before any answer is known."""
    tenants_max: int = 4096
    """Pairs of tenant and category with ratios of their own; over it, the one used least recently is forgotten."""


class ThresholdConfig(Struct, frozen=True):
    """Parameters by which a short pool's threshold tunes itself (token-budget-aware pool routing, §7)."""

    tuned: bool = False
    """False: the threshold stays where it was configured."""
    tokens_min: int = 1024
    """Lower bound of the threshold, or the configured threshold if that is lower. The upper bound is its pool's
    window."""
    interval_ns: int = 10 * _SECOND_NS
    """Shortest time between two moves."""
    requests_min: int = 200
    """Requests that must have ended since the last evaluation before the next."""
    trouble_share: float = 0.01
    """Share of the short pool's requests preempted, rejected or misrouted above which the threshold is lowered."""
    late_ns: int = 2 * _SECOND_NS
    """Time to first token above which a request counts as late."""
    late_share: float = 0.05
    """Share of late requests in one pool, with fewer late in the other, above which requests are moved to the other."""
    tighten: float = 0.8
    """Factor that lowers the threshold."""
    relax: float = 1.1
    """Factor that raises the threshold."""
    patience_ns: int = 300 * _SECOND_NS
    """Time for which the threshold stays below the value it had to be lowered from. Doubled each time that trying
    beyond it failed."""
