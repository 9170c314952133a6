"""Iteration costs that the engine model lacks, to test its interface: each depends on another aspect of a batch."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from loadgen.engine.iteration_cost import EvenPace, LinearCost, Pace
from loadgen.engine.sequences import Sequence


def kv_tokens(batch: list[Sequence]) -> int:
    """Tokens whose keys and values an iteration reads, including those that it computes."""
    return sum(sequence.computed + sequence.scheduled for sequence in batch)


@dataclass(frozen=True)
class GrowingPace:
    """Pace at which each iteration takes longer than the one before, by a constant."""

    first_ns: int
    growth_ns: int

    def duration_ns(self, iterations: int) -> int:
        return iterations * self.first_ns + self.growth_ns * (iterations * (iterations - 1) // 2)

    def ended_by(self, elapsed_ns: int) -> int:
        return bisect_right(range(1, elapsed_ns // self.first_ns + 1), elapsed_ns, key=self.duration_ns)


class Independent:
    """Engine whose iterations wait for no other engine."""

    def next_start_ns(self, now_ns: int) -> int:
        return now_ns

    def rest(self, now_ns: int) -> None:
        pass


@dataclass(frozen=True)
class KvCost(Independent):
    """Linear cost, plus a cost for each token whose keys and values are read."""

    linear: LinearCost
    kv_token_ns: int

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        first_ns = self.linear.iteration_ns(len(batch), prefill_tokens) + kv_tokens(batch) * self.kv_token_ns
        return GrowingPace(first_ns, len(batch) * self.kv_token_ns)


@dataclass(frozen=True)
class ExpertCost(Independent):
    """Cost of reading each expert that any request of the batch calls, once."""

    base_ns: int
    expert_ns: int

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        called = {expert for sequence in batch for expert in experts_of(sequence.request.prompt_tokens)}
        return EvenPace(self.base_ns + len(called) * self.expert_ns)


def experts_of(prompt_tokens: int) -> tuple[int, int]:
    return prompt_tokens % 7, prompt_tokens % 5
