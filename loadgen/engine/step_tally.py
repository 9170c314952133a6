"""Totals over the steps of a decode group: imbalance between its ranks, duration and output. Pure sums, in closed form
over each stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine.decode_group import Steps
from loadgen.engine.envelope import Envelope


@dataclass(slots=True)
class StepTally:
    """Accumulator of totals; pass `add` to a group as its `on_steps`. All ranks count, also those with nothing to
    run."""

    steps: int = 0
    lasted_ns: int = 0
    spread_tokens: int = 0
    """Sum over steps of the KV tokens read by the fullest rank minus those of the emptiest; the paper reports its
    mean."""
    idle_tokens: int = 0
    """Sum over steps and ranks of the KV tokens that a rank reads less than the fullest: the imbalance from which the
    F-score is derived."""
    read_tokens: int = 0
    """Sum over steps and ranks of the KV tokens read."""
    output_tokens: int = 0

    def add(self, told: Steps) -> None:
        kv_tokens, running, steps = told.kv_tokens, told.running, told.steps
        if steps == 1:
            most, least, read = max(kv_tokens), min(kv_tokens), sum(kv_tokens)
        else:
            most = Envelope(kv_tokens, running, steps).duration_ns(steps)
            negative = [-tokens for tokens in kv_tokens], [-count for count in running]
            least = -Envelope(*negative, steps).duration_ns(steps)
            read = steps * sum(kv_tokens) + sum(running) * (steps * (steps - 1) // 2)
        self.steps += steps
        self.lasted_ns += told.end_ns - told.begin_ns
        self.spread_tokens += most - least
        self.idle_tokens += len(running) * most - read
        self.read_tokens += read
        self.output_tokens += steps * sum(running)
