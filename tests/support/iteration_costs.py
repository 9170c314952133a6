"""Iteration cost that the engine model lacks, to test its interface."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine.iteration_cost import EvenPace, Pace
from loadgen.engine.sequences import Sequence


@dataclass(frozen=True)
class ExpertCost:
    """Cost of reading each expert that any request of the batch calls, once."""

    base_ns: int
    expert_ns: int

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        called = {expert for sequence in batch for expert in experts_of(sequence.request.prompt_tokens)}
        return EvenPace(self.base_ns + len(called) * self.expert_ns)

    def next_start_ns(self, now_ns: int) -> int:
        return now_ns

    def rest(self, now_ns: int) -> None:
        pass


def experts_of(prompt_tokens: int) -> tuple[int, int]:
    return prompt_tokens % 7, prompt_tokens % 5
