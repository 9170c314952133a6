"""How long the steps of a group take while nothing changes in it: the upper envelope of what each rank's steps would
take, in closed form. Pure arithmetic over whole nanoseconds; it knows nothing of requests.
"""

from __future__ import annotations

from bisect import bisect_right


class Envelope:
    """Step i of a stretch takes `max(first[g] + i * growth[g])` over all ranks g: from one step to another the rank
    that takes longest comes to be another one, of more growth each time."""

    def __init__(self, first: list[int], growth: list[int], steps: int) -> None:
        """Of that many steps, at least one."""
        self.steps = steps
        self._starts: list[int] = []
        """The step with which each piece begins."""
        self._firsts: list[int] = []
        self._growths: list[int] = []
        self._before_ns: list[int] = []
        """What all steps before a piece take."""
        if steps == 1:
            self._add(0, max(first), 0)
        else:
            self._follow(first, growth)

    def duration_ns(self, steps: int) -> int:
        """How long the first `steps` of them take together."""
        if not steps:
            return 0
        piece = bisect_right(self._starts, steps - 1) - 1
        return self._before_ns[piece] + self._sum_ns(piece, steps - self._starts[piece])

    def ended_by(self, elapsed_ns: int) -> int:
        """How many of them are over by then."""
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
                [(each + step * more, more) for each, more in zip(first, growth, strict=True)]  # a list: faster
            )
            self._add(step, longest, steepest)
            step = self._overtaken(first, growth, longest - step * steepest, steepest)

    def _overtaken(self, first: list[int], growth: list[int], leading: int, steepest: int) -> int:
        """The first step in which another rank takes longer than the one that leads now."""
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
