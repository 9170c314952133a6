"""What the paper claims beside what we measured, each as a range of ratios, and what follows from the two.

It judges by arithmetic alone; where we fall short it says by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from loadgen.evaluation.numbers import Middle
from loadgen.pages.markdown import NOTHING

CLOSE = 0.01
"""What is nearer than this is the same: about what another seed changes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the paper, and the medians of ours that stand for it."""

    what: str
    low: float
    high: float
    """What the paper reports: one value, or a range."""
    pairs: Sequence[Middle | None]
    """None where one has no figures: its runs were not played, or did nothing."""
    more_is_better: bool = True
    is_share: bool = False
    """Shown as a percentage."""
    is_input: bool = False
    """Shows how like the paper's our workload is, and is nothing to be good at."""
    why: str = ""
    """What explains a shortfall, from our own figures."""

    @property
    def ours(self) -> list[Middle]:
        return [each for each in self.pairs if each is not None]

    @property
    def is_whole(self) -> bool:
        return bool(self.pairs) and None not in self.pairs

    @property
    def our_low(self) -> float:
        return min(each.median for each in self.ours)

    @property
    def our_high(self) -> float:
        return max(each.median for each in self.ours)

    @property
    def reached(self) -> int:
        """How many of ours are no more than `CLOSE` worse than the weakest end of what the paper reports. Nothing is
        held against its strongest."""
        if self.more_is_better:
            return sum(each.median >= self.low * (1 - CLOSE) for each in self.ours)
        return sum(each.median <= self.high * (1 + CLOSE) for each in self.ours)

    @property
    def is_short(self) -> bool:
        return not self.is_input and self.reached < len(self.ours)

    @property
    def is_reached(self) -> bool:
        """Only where every pair was played."""
        return not self.is_input and self.is_whole and not self.is_short

    @property
    def verdict(self) -> str:
        if self.is_whole:
            return self._verdict
        played = f"{len(self.ours)} of {len(self.pairs)} pairs played"
        return f"{self._verdict}; {played}" if self.is_short or (self.is_input and self.ours) else played

    @property
    def _verdict(self) -> str:
        if self.is_input:
            return self._likeness
        if not self.is_short:
            return "reached"
        if self.reached:
            return f"reached in {self.reached} of {len(self.ours)}"
        best = (self.low - self.our_high) / self.low if self.more_is_better else (self.our_low - self.high) / self.high
        if isinf(best):
            return "short beyond measure"
        return f"short by {best:.0%}" if len(self.ours) == 1 else f"short by {best:.0%} at best"

    @property
    def _likeness(self) -> str:
        if self.our_low <= self.high and self.our_high >= self.low:
            return "alike"
        return (
            f"{self.our_low / self.high - 1:+.0%}"
            if self.our_low > self.high
            else f"{self.our_high / self.low - 1:+.0%}"
        )

    def cells(self) -> tuple[str, str, str, str]:
        ours = self._range(self.our_low, self.our_high) if self.ours else NOTHING
        return self.what, self._range(self.low, self.high), ours, self.verdict

    def _range(self, low: float, high: float) -> str:
        first, last = self._shown(low), self._shown(high)
        return first if first == last else f"{first} to {last}"

    def _shown(self, value: float) -> str:
        if isinf(value):
            return "∞"
        if self.is_share:
            return f"{100 * value:.1f} %"
        return f"× {value:.2f}" if value < 10 else f"× {value:.1f}"
