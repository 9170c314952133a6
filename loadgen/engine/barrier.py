"""Iteration cost of engines that wait for each other: data-parallel ranks, each an engine model of its own, which begin
every iteration together, when the slowest has ended the last. Pure.

A rank with nothing to run steps along while any rank runs. The driver of such ranks must let none run ahead of another
(`ranks.py`). For decode alone, `decode_group.py` is a faster model with the same results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadgen.engine.decode_group import Steps
from loadgen.engine.envelope import Envelope
from loadgen.engine.iteration_cost import Pace
from loadgen.engine.sequences import Sequence


class Barrier:
    """Shared clock of the ranks. An iteration of a rank takes `base_ns`, plus `kv_token_ns` for each token that it
    reads or computes, plus `prefill_token_ns` for each prompt token."""

    def __init__(
        self,
        ranks: int,
        base_ns: int,
        kv_token_ns: int,
        prefill_token_ns: int = 0,
        on_steps: Callable[[Steps], object] | None = None,
    ) -> None:
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.base_ns = base_ns
        self.kv_token_ns = kv_token_ns
        self.prefill_token_ns = prefill_token_ns
        self._on_steps = on_steps
        self._loads: dict[int, _Load] = {}
        """Load of each rank that runs."""
        self._begins_ns = deque([0])
        """Start of each remembered iteration; the last is in flight while any rank runs."""
        self._forgotten = 0
        """Number of iterations before the remembered ones."""

    @property
    def current(self) -> int:
        """Number of the iteration in flight, or of the next one."""
        return self._forgotten + len(self._begins_ns) - 1

    @property
    def begin_ns(self) -> int:
        return self._begins_ns[-1]

    @property
    def is_running(self) -> bool:
        return bool(self._loads)

    def begins_ns(self, iteration: int) -> int:
        """Start of an iteration; of a later one, the start predicted from the present loads."""
        known = iteration - self._forgotten
        if known < len(self._begins_ns):
            return self._begins_ns[known]
        ahead = range(known - len(self._begins_ns) + 1)
        return self._begins_ns[-1] + sum([self._iteration_ns(after) for after in ahead])

    def move_to(self, now_ns: int) -> None:
        while self._loads and (next_ns := self.begins_ns(self.current + 1)) <= now_ns:
            if self._on_steps is not None:
                self._on_steps(self._told(next_ns))
            self._begins_ns.append(next_ns)
            for load in self._loads.values():
                load.first_ns += load.growth_ns
                load.kv_tokens += load.running
            self._forget()
        if now_ns > self._begins_ns[-1] and not self._loads:
            self._begins_ns.append(now_ns)
            self._forget()

    def run(self, rank: int, batch: list[Sequence], prefill_tokens: int) -> int:
        """Register a rank's batch from the iteration that begins now. Returns that iteration's number."""
        kv_tokens = sum([sequence.computed + sequence.scheduled for sequence in batch])
        first_ns = self.base_ns + kv_tokens * self.kv_token_ns + prefill_tokens * self.prefill_token_ns
        growth_ns = len(batch) * self.kv_token_ns
        self._loads[rank] = _Load(self.current, first_ns, growth_ns, kv_tokens, len(batch))
        return self.current

    def rest(self, rank: int) -> None:
        self._loads.pop(rank, None)

    def _iteration_ns(self, after: int) -> int:
        return max([load.first_ns + after * load.growth_ns for load in self._loads.values()])

    def _told(self, end_ns: int) -> Steps:
        loads = [self._loads.get(rank) for rank in range(len(self.ranks))]
        return Steps(
            self.current,
            1,
            self.begin_ns,
            end_ns,
            [0 if load is None else load.running for load in loads],
            [0 if load is None else load.kv_tokens for load in loads],
            Envelope([end_ns - self.begin_ns], [0], 1),
            [],
        )

    def _forget(self) -> None:
        """Drop the starts of iterations before the earliest one at which a running rank's batch began."""
        wanted = min([load.since for load in self._loads.values()], default=self.current)
        while self._forgotten < wanted and len(self._begins_ns) > 1:
            self._begins_ns.popleft()
            self._forgotten += 1


class _Load:
    __slots__ = ("first_ns", "growth_ns", "kv_tokens", "running", "since")

    def __init__(self, since: int, first_ns: int, growth_ns: int, kv_tokens: int, running: int) -> None:
        self.since = since
        """Iteration at which the batch began."""
        self.first_ns = first_ns
        """Duration of the rank's iteration in flight."""
        self.growth_ns = growth_ns
        self.kv_tokens = kv_tokens
        self.running = running


class Rank:
    """Iteration cost of one rank; an `IterationCost`."""

    def __init__(self, barrier: Barrier, number: int) -> None:
        self._barrier = barrier
        self._number = number

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        self._barrier.move_to(now_ns)
        assert self._barrier.begin_ns == now_ns, "ranks start together"
        return _JointPace(self._barrier, self._barrier.run(self._number, batch, prefill_tokens))

    def next_start_ns(self, now_ns: int) -> int:
        self._barrier.move_to(now_ns - 1)
        return self._barrier.begins_ns(self._barrier.current + 1) if self._barrier.is_running else now_ns

    def rest(self, now_ns: int) -> None:
        self._barrier.move_to(now_ns)
        self._barrier.rest(self._number)


class _JointPace(Pace):
    """Pace of a rank. The durations of later iterations change with what the other ranks run."""

    def __init__(self, barrier: Barrier, first: int) -> None:
        self._barrier = barrier
        self._first = first
        self._begin_ns = barrier.begins_ns(first)

    def duration_ns(self, iterations: int) -> int:
        return self._barrier.begins_ns(self._first + iterations) - self._begin_ns if iterations else 0

    def ended_by(self, elapsed_ns: int) -> int:
        ended = 0
        while self.duration_ns(ended + 1) <= elapsed_ns:
            ended += 1
        return ended
