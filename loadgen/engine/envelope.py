"""Durations of a group's steps while its batches stay the same: the upper envelope of the ranks' step durations, in
closed form. Pure arithmetic over whole nanoseconds, without requests.
"""

from __future__ import annotations

from bisect import bisect_right


class Envelope:
    """Step i of a stretch takes `max(first[g] + i * growth[g])` over all ranks g. The slowest rank changes from step to
    step, to one of larger growth each time."""

    def __init__(self, first: list[int], growth: list[int], steps: int) -> None:
        """Compute the pieces of `steps` steps, at least one."""
        self.steps = steps
        self._starts: list[int] = []
        """First step of each piece."""
        self._firsts: list[int] = []
        self._growths: list[int] = []
        self._before_ns: list[int] = []
        """Duration of all steps before a piece."""
        if steps == 1:
            self._add(0, max(first), 0)
        else:
            self._follow(first, growth)

    def duration_ns(self, steps: int) -> int:
        """Duration of the first `steps` steps together."""
        if not steps:
            return 0
        piece = bisect_right(self._starts, steps - 1) - 1
        return self._before_ns[piece] + self._sum_ns(piece, steps - self._starts[piece])

    def ended_by(self, elapsed_ns: int) -> int:
        """Number of steps that are over after `elapsed_ns`."""
        if len(self._starts) == 1 and elapsed_ns < self._firsts[0]:
            return 0
        low, high = 0, self.steps
        while low < high:
            middle = (low + high + 1) // 2
            if self.duration_ns(middle) <= elapsed_ns:
                low = middle
            else:
                high = middle - 1
        return low

    def _follow(self, first: list[int], growth: list[int]) -> None:
        step = 0
        while step < self.steps:
            longest, steepest = max(
                [(each + step * more, more) for each, more in zip(first, growth, strict=True)]  # a list is faster
            )
            self._add(step, longest, steepest)
            step = self._overtaken(first, growth, longest - step * steepest, steepest)

    def _overtaken(self, first: list[int], growth: list[int], leading: int, steepest: int) -> int:
        """First step in which another rank takes longer than the leading one."""
        earliest = self.steps
        for each, more in zip(first, growth, strict=True):
            if more > steepest:
                earliest = min(earliest, (leading - each) // (more - steepest) + 1)
        return earliest

    def _add(self, start: int, first_ns: int, growth_ns: int) -> None:
        before_ns = 0
        if self._starts:
            before_ns = self._before_ns[-1] + self._sum_ns(-1, start - self._starts[-1])
        self._starts.append(start)
        self._firsts.append(first_ns)
        self._growths.append(growth_ns)
        self._before_ns.append(before_ns)

    def _sum_ns(self, piece: int, steps: int) -> int:
        return steps * self._firsts[piece] + self._growths[piece] * (steps * (steps - 1) // 2)
