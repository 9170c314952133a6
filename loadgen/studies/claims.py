"""Compares the paper's claims with measured values, each as a range of ratios, and derives the verdicts.

It judges by arithmetic alone; a shortfall is stated with its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from loadgen.pages.markdown import NOTHING
from loadgen.studies.numbers import Middle

CLOSE = 0.01
"""Relative difference below which values count as equal: about the effect of another seed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the paper, and the measured medians that correspond to it."""

    what: str
    low: float
    high: float
    """Range that the paper reports; both ends are equal for a single value."""
    pairs: Sequence[Middle | None]
    """Medians per pair; None for a pair without figures: its runs were not played, or had no throughput."""
    more_is_better: bool = True
    is_share: bool = False
    """Shown as a percentage."""
    is_input: bool = False
    """True for figures that describe how similar the workload is to the paper's, and are not judged."""
    why: str = ""
    """Explanation of a shortfall, from the measured figures."""

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
        """Number of pairs that are at most `CLOSE` worse than the weaker end of the paper's range. The stronger end is
        not compared."""
        if self.more_is_better:
            return sum(each.median >= self.low * (1 - CLOSE) for each in self.ours)
        return sum(each.median <= self.high * (1 + CLOSE) for each in self.ours)

    @property
    def is_short(self) -> bool:
        return not self.is_input and self.reached < len(self.ours)

    @property
    def is_reached(self) -> bool:
        """True if all pairs were played and reached the claim."""
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
