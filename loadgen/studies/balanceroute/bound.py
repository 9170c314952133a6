"""Computes a lower bound on the load imbalance, for any policy that runs the same requests in the same steps and
chooses only the worker of each, even if it knows all requests beforehand.

A running request never moves, so one that ends leaves a gap on its worker. Let X(t) be max − min of the loads at step
t. Between t and t + τ, d requests end, which had sizes s at t, and some are admitted, with prompts of A tokens in all.

- The worker of the largest ended request loses at least s_1 − A; and of the at most d workers that lose requests, one
loses at least (Σs − A)/d. Beside that each worker grows by at most B·τ.
- If d < G, some worker loses no request, and grows by at least (B − f)·τ, where f slots of all were free at t.

So two loads drift apart by at least b = max(s_1 − A, (Σs − A)/d) − f·τ, and X(t) + X(t + τ) ≥ b. Averaged over t, the
mean of X is at least half the mean of the positive part of b, for every τ: the largest of some is taken.

The bound is not tight: it lets the best policy undo all the past in one choice. The gap between it and a measured
imbalance is the most that can still be gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ran(NamedTuple):
    """One request: its prompt tokens, the first step that it ran, and the first step after its end."""

    prompt_tokens: int
    first: int
    end: int


def gap_at_least(ran: Sequence[Ran], begin: int, end: int, *, workers: int, batch: int, lags: Sequence[int]) -> float:
    """Lower bound in tokens: no assignment has a smaller mean of max − min over the steps `begin` … `end`."""
    return max((_half_mean(ran, begin, end, (workers, batch), lag) for lag in lags if begin + lag < end), default=0.0)


def _half_mean(ran: Sequence[Ran], begin: int, end: int, size: tuple[int, int], lag: int) -> float:
    workers, batch = size
    steps = end - begin - lag
    lost, largest, admitted = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    leavers, stayers = np.zeros(steps), np.zeros(steps)
    for prompt, first, last in ran:
        # running at t, ended by t + lag
        low, high = max(first, last - lag) - begin, min(last - begin, steps)
        if (low := max(low, 0)) < high:
            sizes = prompt + np.arange(low, high) + begin - first
            lost[low:high] += sizes
            leavers[low:high] += 1
            np.maximum(largest[low:high], sizes, out=largest[low:high])
        # admitted after t, running at t + lag
        low, high = max(first - lag - begin, 0), min(first, last - lag) - begin
        if low < (high := min(high, steps)):
            admitted[low:high] += prompt
        # running at t and at t + lag
        low, high = max(first - begin, 0), min(last - lag - begin, steps)
        if low < high:
            stayers[low:high] += 1
    free = workers * batch - stayers - leavers
    apart = np.maximum(largest - admitted, (lost - admitted) / np.maximum(leavers, 1)) - free * lag
    apart[(leavers == 0) | (leavers >= workers)] = 0.0
    return float(np.maximum(apart, 0.0).sum()) / 2 / (steps + lag) if steps > 0 else 0.0
