"""Find the subset of requests that scores highest for a worker: exact, without enumerating subsets (BalanceRoute D.4).
Computation only.

The score of a subset depends only on its sum, and is concave in it. So the best sum is the largest reachable one up to
the peak, or the smallest beyond it: two probes into the reachable sums, kept as the bits of one integer.
"""

from __future__ import annotations

from gateway.core.features.disaggregated.score import Score


def best_subset(
    weights: list[int], count_max: int, score: Score, unit: int = 1, sum_max: int | None = None
) -> list[int]:
    """Indexes of the best subset of at most `count_max` weights. Weights are positive, heaviest first, in units of
    `unit` tokens; of subsets with equal sums, one with most requests wins. Empty only if each weight exceeds `sum_max`
    (also in units)."""
    assert count_max > 0, "no subset is smaller than one"
    skipped = 0 if sum_max is None else sum([weight > sum_max for weight in weights])
    weights = weights[skipped:]
    if not weights:
        return []
    count_max = min(count_max, len(weights))
    if count_max == 1:
        lightest_first = [weight * unit for weight in reversed(weights)]
        return [skipped + len(weights) - 1 - score.best_of(lightest_first)]
    heaviest = sum(weights[:count_max])
    most = heaviest if sum_max is None else min(heaviest, sum_max)
    if heaviest == most and heaviest * unit <= score.peak:
        return list(range(skipped, skipped + count_max))
    # no sum beyond this bound is better: without any one of its weights it would still lie beyond the peak
    most = min(most, _in_units(score.peak, unit, most) + weights[0])
    return [skipped + place for place in _chosen(weights, count_max, most, score, unit)]


def _chosen(weights: list[int], count_max: int, most: int, score: Score, unit: int) -> list[int]:
    """Walk back from the best sum to the weights that it consists of."""
    sums, before = _reachable(weights, count_max, most)
    total = _best_sum(sums, most, score, unit)
    count = max([count for count, had in enumerate(sums) if had >> total & 1])
    chosen = []
    for place in range(len(weights) - 1, -1, -1):
        if not before[place][count] >> total & 1:
            chosen.append(place)
            count -= 1
            total -= weights[place]
    assert count == total == 0, "what can be had is made of something"
    return chosen[::-1]


def _reachable(weights: list[int], count_max: int, most: int) -> tuple[list[int], list[list[int]]]:
    """Reachable sums by number of weights: bit s of entry j means that j weights sum to s. Returned after all weights,
    and before each one. Sums above `most` are left out."""
    mask = (1 << (most + 1)) - 1
    sums = [1] + [0] * count_max
    before: list[list[int]] = []
    for place, weight in enumerate(weights):
        before.append(sums[:])
        for count in range(min(place, count_max - 1), -1, -1):
            had = sums[count]
            if had:
                sums[count + 1] |= (had << weight) & mask
    return sums, before


def _best_sum(sums: list[int], most: int, score: Score, unit: int) -> int:
    """Best sum by two probes. The empty subset is excluded."""
    had = 0
    for some in sums[1:]:
        had |= some
    peak = _in_units(score.peak, unit, most)
    below = had & ((1 << (peak + 1)) - 1)
    beyond = had >> (peak + 1)
    smallest_beyond = peak + (beyond & -beyond).bit_length()
    if not below:
        return smallest_beyond
    largest_below = below.bit_length() - 1
    if beyond and score.at(smallest_beyond * unit) > score.at(largest_below * unit):
        return smallest_beyond
    return largest_below


def _in_units(tokens: float, unit: int, most: int) -> int:
    return most if tokens >= most * unit else int(tokens) // unit
