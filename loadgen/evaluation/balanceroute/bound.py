"""How small the imbalance could be at best: a bound from below for whoever runs the same requests in the same steps,
also if it knows all of them beforehand, and chooses nothing but the worker of each.

Nobody moves a request, so what ends leaves a gap where it was. Let X(t) be max − min of the loads at step t. Between t
and t + τ some requests end, which had sizes s at t, d of them, and some are admitted, with prompts of A tokens in all.

- Whoever had the largest of those that ended loses at least s_1 − A; and of the d workers at most that lose something,
  one loses at least (Σs − A)/d. Beside that each worker grows by at most B·τ.
- If d < G, somebody loses nothing, and grows by at least (B − f)·τ, where f slots of all were free at t.

So two loads drift apart by at least b = max(s_1 − A, (Σs − A)/d) − f·τ, and X(t) + X(t + τ) ≥ b. Averaged over t, the
mean of X is at least half the mean of the positive part of b, for whichever τ: the largest of some is taken.

It is not tight: it lets whoever is best undo all the past in one choice. What lies between it and a measured imbalance
is at most what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


class Ran(NamedTuple):
    """One request: its prompt, the step that it ran first, and the first that it did not run any more."""

    prompt_tokens: int
    first: int
    end: int


def gap_at_least(ran: Sequence[Ran], begin: int, end: int, *, workers: int, batch: int, lags: Sequence[int]) -> float:
    """Tokens: no assignment has a smaller mean of max − min over the steps `begin` … `end`."""
    return max((_half_mean(ran, begin, end, (workers, batch), lag) for lag in lags if begin + lag < end), default=0.0)


def _half_mean(ran: Sequence[Ran], begin: int, end: int, size: tuple[int, int], lag: int) -> float:
    workers, batch = size
    steps = end - begin - lag
    lost, largest, admitted = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    leavers, stayers = np.zeros(steps), np.zeros(steps)
    for prompt, first, last in ran:
        # it ran at t, and has left by t + lag
        low, high = max(first, last - lag) - begin, min(last - begin, steps)
        if (low := max(low, 0)) < high:
            sizes = prompt + np.arange(low, high) + begin - first
            lost[low:high] += sizes
            leavers[low:high] += 1
            np.maximum(largest[low:high], sizes, out=largest[low:high])
        # it came after t, and runs at t + lag
        low, high = max(first - lag - begin, 0), min(first, last - lag) - begin
        if low < (high := min(high, steps)):
            admitted[low:high] += prompt
        # it runs at t and at t + lag
        low, high = max(first - begin, 0), min(last - lag - begin, steps)
        if low < high:
            stayers[low:high] += 1
    free = workers * batch - stayers - leavers
    apart = np.maximum(largest - admitted, (lost - admitted) / np.maximum(leavers, 1)) - free * lag
    apart[(leavers == 0) | (leavers >= workers)] = 0.0
    return float(np.maximum(apart, 0.0).sum()) / 2 / (steps + lag) if steps > 0 else 0.0
