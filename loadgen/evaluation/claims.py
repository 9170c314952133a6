"""What the paper claims beside what we measured, each as a range of ratios, and what follows from the two.

It judges by arithmetic alone; where we fall short it says by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.evaluation.numbers import Middle

_CLOSE = 0.01
"""What is nearer than this is the same: about what another seed changes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the paper, and the medians of ours that stand for it."""

    what: str
    low: float
    high: float
    """What the paper reports: one value, or a range."""
    ours: Sequence[Middle]
    more_is_better: bool = True
    is_share: bool = False
    """Shown as a percentage."""
    is_input: bool = False
    """Shows how like the paper's our workload is, and is nothing to be good at."""
    why: str = ""
    """What explains a shortfall, from our own figures."""

    @property
    def our_low(self) -> float:
        return min(each.median for each in self.ours)

    @property
    def our_high(self) -> float:
        return max(each.median for each in self.ours)

    @property
    def shortfall(self) -> float:
        """How far our worst case is from the paper's, as a share of the paper's; 0 where it is as good."""
        if self.is_input:
            return 0.0
        behind = self.low - self.our_low if self.more_is_better else self.our_high - self.high
        gap = behind / (self.low if self.more_is_better else self.high)
        return gap if gap > _CLOSE else 0.0

    @property
    def verdict(self) -> str:
        if self.is_input:
            return self._likeness
        if not self.shortfall:
            return "reached"
        best_reaches = self.our_high >= self.low if self.more_is_better else self.our_low <= self.high
        if best_reaches:
            return f"in part; the worst case is {self.shortfall:.0%} short"
        return f"short by {self._distance:.0%} at best"

    @property
    def _likeness(self) -> str:
        if self.our_low <= self.high and self.our_high >= self.low:
            return "alike"
        return (
            f"{self.our_low / self.high - 1:+.0%}"
            if self.our_low > self.high
            else f"{self.our_high / self.low - 1:+.0%}"
        )

    @property
    def _distance(self) -> float:
        if self.more_is_better:
            return (self.low - self.our_high) / self.low
        return (self.our_low - self.high) / self.high

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self._range(self.low, self.high), self._range(self.our_low, self.our_high), self.verdict

    def _range(self, low: float, high: float) -> str:
        first, last = self._shown(low), self._shown(high)
        return first if first == last else f"{first} to {last}"

    def _shown(self, value: float) -> str:
        if self.is_share:
            return f"{100 * value:.1f} %"
        return f"× {value:.2f}" if value < 10 else f"× {value:.1f}"
