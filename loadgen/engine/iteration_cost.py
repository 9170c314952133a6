"""Cost in time of an engine's iterations: the one aspect that the model does not decide itself.

An `IterationCost` looks at the batch of an iteration and answers with a `Pace`, which also gives the times of the
following iterations while the batch stays the same, so that the model can jump over them. Both are pure: they read no
clock and do not change their arguments.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from loadgen.engine.sequences import Sequence


class Pace(Protocol):
    """Durations of iterations over one batch, each of whose sequences gains a token per iteration.

    Only an iteration without prefill is followed by others of the same pace. The durations of iterations that have
    begun are final; those of later ones may be revised, as where engines wait for each other.
    """

    def duration_ns(self, iterations: int) -> int:
        """Duration of the first `iterations` together: 0 for none of them, and increasing."""
        ...

    def ended_by(self, elapsed_ns: int) -> int:
        """Number of iterations over after `elapsed_ns` ≥ 0: the most whose `duration_ns` is not above `elapsed_ns`."""
        ...


class IterationCost(Protocol):
    """Cost of one engine's iterations. Calls do not go back in time.

    A stateless cost may serve many engines; a stateful one, as where ranks wait for each other at a barrier, belongs to
    one engine.
    """

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> Pace:
        """Pace of an iteration that starts now and computes the `scheduled` tokens of each sequence after those
        `computed`; `prefill_tokens` of them are prefill. The batch is not empty, and must not be kept."""
        ...

    def next_start_ns(self, now_ns: int) -> int:
        """Earliest time, not before now, at which an engine that ran nothing may start an iteration."""
        ...

    def rest(self, now_ns: int) -> None:
        """Report that the engine has nothing to run until the next `pace`."""
        ...


class EvenPace(Pace):
    """Constant pace: each iteration takes as long as the first."""

    # Explicit base class: compiled, the model then calls it as directly as a method of its own.

    def __init__(self, iteration_ns: int) -> None:
        self._iteration_ns = iteration_ns

    def duration_ns(self, iterations: int) -> int:
        return iterations * self._iteration_ns

    def ended_by(self, elapsed_ns: int) -> int:
        return elapsed_ns // self._iteration_ns


@dataclass(frozen=True, slots=True)
class LinearCost:
    """An iteration over n sequences that prefills p tokens takes `base_ns + n * sequence_ns + p * prefill_token_ns`,
    whatever the length of the sequences (token-budget paper, Eq. 9, with a term for prefill)."""

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


class GrowingPace(Pace):
    """Pace at which each iteration takes longer than the one before, by a constant."""

    def __init__(self, first_ns: int, growth_ns: int) -> None:
        self._first_ns = first_ns
        self._growth_ns = growth_ns

    def duration_ns(self, iterations: int) -> int:
        return iterations * self._first_ns + self._growth_ns * (iterations * (iterations - 1) // 2)

    def ended_by(self, elapsed_ns: int) -> int:
        return bisect_right(range(1, elapsed_ns // self._first_ns + 1), elapsed_ns, key=self.duration_ns)


@dataclass(frozen=True, slots=True)
class KvCost:
    """Linear cost, and `kv_token_ns` for each token whose keys and values an iteration reads or computes: long contexts
    are slow to decode."""

    linear: LinearCost
    kv_token_ns: int

    def __post_init__(self) -> None:
        assert self.kv_token_ns >= 0

    def pace(self, now_ns: int, batch: list[Sequence], prefill_tokens: int) -> GrowingPace:  # noqa: ARG002 - any time
        kv_tokens = sum([sequence.computed + sequence.scheduled for sequence in batch])
        first_ns = self.linear.iteration_ns(len(batch), prefill_tokens) + kv_tokens * self.kv_token_ns
        return GrowingPace(first_ns, len(batch) * self.kv_token_ns)

    def next_start_ns(self, now_ns: int) -> int:
        return now_ns

    def rest(self, now_ns: int) -> None:
        pass
