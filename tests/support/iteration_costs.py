"""Costs that the engine model does not come with, to hold its seam against: each asks something else of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from loadgen.engine.iteration_cost import EvenPace, LinearCost, Pace
from loadgen.engine.sequences import Sequence


def kv_tokens(batch: list[Sequence]) -> int:
    """Whose keys and values an iteration reads, those that it computes included."""
    return sum(sequence.computed + sequence.scheduled for sequence in batch)


@dataclass(frozen=True)
class GrowingPace:
    """Each iteration takes longer than the one before, by as much."""

    first_ns: int
    growth_ns: int

    def duration_ns(self, iterations: int) -> int:
        return iterations * self.first_ns + self.growth_ns * (iterations * (iterations - 1) // 2)

    def ended_by(self, elapsed_ns: int) -> int:
        return bisect_right(range(1, elapsed_ns // self.first_ns + 1), elapsed_ns, key=self.duration_ns)


class Independent:
    """An engine that waits for nobody."""

    def next_start_ns(self, now_ns: int) -> int:
        return now_ns

    def rest(self, now_ns: int) -> None:
        pass


@dataclass(frozen=True)
class KvCost(Independent):
    """Beside the linear cost, each token costs its share whose keys and values are read."""

    linear: LinearCost
    kv_token_ns: int

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        first_ns = self.linear.iteration_ns(len(batch), prefill_tokens) + kv_tokens(batch) * self.kv_token_ns
        return GrowingPace(first_ns, len(batch) * self.kv_token_ns)


@dataclass(frozen=True)
class ExpertCost(Independent):
    """Each expert that any request of the batch calls is read once."""

    base_ns: int
    expert_ns: int

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        called = {expert for sequence in batch for expert in experts_of(sequence.request.prompt_tokens)}
        return EvenPace(self.base_ns + len(called) * self.expert_ns)


def experts_of(prompt_tokens: int) -> tuple[int, int]:
    return prompt_tokens % 7, prompt_tokens % 5


class Barrier:
    """Ranks that start each iteration together, when the one with the most to read has ended the last."""

    def __init__(self, ranks: int, base_ns: int, kv_token_ns: int) -> None:
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.loads: dict[int, tuple[int, int]] = {}
        """Of each rank that runs: the tokens that it reads in the iteration in flight, and by how many they grow."""
        self.begins_ns = [0]
        """Of each iteration until now; the last is in flight while anybody runs."""
        self._base_ns = base_ns
        self._kv_token_ns = kv_token_ns

    def begin_ns(self, iteration: int) -> int:
        """When it began, or will as far as one can see."""
        if iteration < len(self.begins_ns):
            return self.begins_ns[iteration]
        ahead = range(iteration - len(self.begins_ns) + 1)
        return self.begins_ns[-1] + sum(self._iteration_ns(after) for after in ahead)

    def _iteration_ns(self, after: int) -> int:
        most = max(tokens + after * growth for tokens, growth in self.loads.values())
        return self._base_ns + most * self._kv_token_ns

    def move_to(self, now_ns: int) -> None:
        while self.loads and (next_ns := self.begin_ns(len(self.begins_ns))) <= now_ns:
            self.begins_ns.append(next_ns)
            self.loads = {rank: (tokens + growth, growth) for rank, (tokens, growth) in self.loads.items()}
        if now_ns > self.begins_ns[-1] and not self.loads:
            self.begins_ns.append(now_ns)


class Rank:
    """The cost of one of them."""

    def __init__(self, barrier: Barrier, number: int) -> None:
        self._barrier = barrier
        self._number = number

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        self._barrier.move_to(now_ns)
        assert self._barrier.begins_ns[-1] == now_ns, "ranks start together"
        self._barrier.loads[self._number] = kv_tokens(batch), len(batch)
        return JointPace(self._barrier, len(self._barrier.begins_ns) - 1)

    def next_start_ns(self, now_ns: int) -> int:
        self._barrier.move_to(now_ns - 1)
        runs = self._barrier.loads
        return self._barrier.begin_ns(len(self._barrier.begins_ns)) if runs else now_ns

    def rest(self, now_ns: int) -> None:
        self._barrier.move_to(now_ns)
        self._barrier.loads.pop(self._number, None)


@dataclass(frozen=True)
class JointPace:
    """What it says of later iterations changes with what the other ranks run."""

    barrier: Barrier
    first: int

    def duration_ns(self, iterations: int) -> int:
        return self.barrier.begin_ns(self.first + iterations) - self.barrier.begin_ns(self.first)

    def ended_by(self, elapsed_ns: int) -> int:
        ended = 0
        while self.duration_ns(ended + 1) <= elapsed_ns:
            ended += 1
        return ended
