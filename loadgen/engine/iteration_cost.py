"""What an iteration of an engine costs in time: the one thing about it that the model does not decide.

An `IterationCost` looks at the batch of an iteration and answers with a `Pace`, which also tells the times of the
iterations after it while the batch stays the same. So the model can jump over them, and the jump's arithmetic belongs
to whoever knows the cost. Both are pure: they read no clock and change nothing that they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loadgen.engine.sequences import Sequence


class Pace(Protocol):
    """How long iterations take over one batch, each of whose sequences gains a token an iteration.

    Only an iteration that prefills nothing is followed by others of the same pace. What has been said of iterations
    that have begun stands; of later ones a pace may come to say something else, as where engines wait for each other.
    """

    def duration_ns(self, iterations: int) -> int:
        """How long the first `iterations` take together: 0 for none of them, and more with each."""
        ...

    def ended_by(self, elapsed_ns: int) -> int:
        """How many of them are over by then: the most whose `duration_ns` is not above `elapsed_ns`, which is ≥ 0."""
        ...


class IterationCost(Protocol):
    """The cost of one engine's iterations. Calls do not go back in time.

    One that remembers nothing may serve many engines; one that does, as where ranks wait for each other at a barrier,
    is an object of one engine's own.
    """

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        """An iteration over this batch starts now, which computes the `scheduled` tokens of each sequence beside those
        `computed`; `prefill_tokens` of them are prefill. The batch is not empty, and not to be kept."""
        ...

    def next_start_ns(self, now_ns: int) -> int:
        """When an engine that ran nothing may start an iteration, now or later."""
        ...

    def rest(self, now_ns: int) -> None:
        """The engine has nothing to run from now on, until the next `pace`."""
        ...


class EvenPace(Pace):
    """Each iteration takes as long as the first."""

    # A plain class with its base named: compiled, the model then calls it as directly as a method of its own.

    def __init__(self, iteration_ns: int) -> None:
        self._iteration_ns = iteration_ns

    def duration_ns(self, iterations: int) -> int:
        return iterations * self._iteration_ns

    def ended_by(self, elapsed_ns: int) -> int:
        return elapsed_ns // self._iteration_ns


@dataclass(frozen=True, slots=True)
class LinearCost:
    """An iteration over n sequences that prefills p tokens takes `base_ns + n * sequence_ns + p * prefill_token_ns`,
    however long the sequences are (token-budget paper, Eq. 9, with a term for prefill)."""

    base_ns: int
    sequence_ns: int
    prefill_token_ns: int

    def __post_init__(self) -> None:
        assert self.base_ns > 0
        assert self.sequence_ns >= 0
        assert self.prefill_token_ns >= 0

    def iteration_ns(self, sequences: int, prefill_tokens: int) -> int:
        return self.base_ns + sequences * self.sequence_ns + prefill_tokens * self.prefill_token_ns

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> EvenPace:  # noqa: ARG002 - any time
        return EvenPace(self.iteration_ns(len(batch), prefill_tokens))

    def next_start_ns(self, now_ns: int) -> int:
        return now_ns

    def rest(self, now_ns: int) -> None:
        pass
