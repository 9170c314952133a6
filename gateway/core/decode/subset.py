"""Which of some requests together are worth most to a worker: exact, in time that does not grow with their number of
subsets (BalanceRoute D.4). It only computes.

What a subset is worth depends on nothing but its sum, and is concave in it. So the best sum is the largest that can be
had up to the peak, or the smallest beyond it: two probes into the sums that can be had, which are bits of one number.
"""

from __future__ import annotations

from gateway.core.decode.score import Score


def best_subset(
    weights: list[int], count_max: int, score: Score, unit: int = 1, sum_max: int | None = None
) -> list[int]:
    """The places of the best one, of at most `count_max` weights, which are positive, heaviest first, and in units of
    so many tokens; of subsets with equal sums, one that serves most. Never empty, unless each weight is more than
    `sum_max` (in units as well)."""
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
    # nothing better is larger: whatever is larger stays beyond the peak with any one of its weights left out
    most = min(most, _in_units(score.peak, unit, most) + weights[0])
    return [skipped + place for place in _chosen(weights, count_max, most, score, unit)]


def _chosen(weights: list[int], count_max: int, most: int, score: Score, unit: int) -> list[int]:
    """Walks back, from the best sum, to the weights that it is made of."""
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
    """Which sums can be had of exactly so many weights: bit s of number j stands for sum s of j of them. After all
    weights, and before each. Those above `most` are left out."""
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
    """The two probes. The empty subset is none."""
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
