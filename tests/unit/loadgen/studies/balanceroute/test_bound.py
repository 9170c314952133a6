"""The lower bound of the gap: no assignment is below it, and it is above zero often enough."""

from __future__ import annotations

import random
from itertools import product

from loadgen.studies.balanceroute.bound import Ran, gap_at_least

LAGS = (1, 2, 3, 5)


def best_gap(ran: list[Ran], begin: int, end: int, workers: int, batch: int) -> float | None:
    """Smallest mean of max − min over all assignments; None if no assignment keeps to the batch."""
    found = []
    for homes in product(range(workers), repeat=len(ran)):
        loads = [[0] * workers for _ in range(begin, end)]
        counts = [[0] * workers for _ in range(begin, end)]
        for each, home in zip(ran, homes, strict=True):
            for step in range(max(begin, each.first), min(end, each.end)):
                loads[step - begin][home] += each.prompt_tokens + step - each.first
                counts[step - begin][home] += 1
        if max(max(row) for row in counts) <= batch:
            found.append(sum(max(row) - min(row) for row in loads) / (end - begin))
    return min(found, default=None)


def test_no_assignment_is_better() -> None:
    rng = random.Random(5)
    positive = 0
    for _ in range(60):
        workers, batch = rng.choice(((2, 2), (3, 2), (2, 3)))
        ran = []
        for _ in range(rng.randint(3, 6)):
            first = rng.randint(0, 12)
            ran.append(Ran(rng.choice((5, 60, 300)), first, first + rng.randint(1, 10)))
        best = best_gap(ran, 2, 16, workers, batch)
        if best is None:
            continue
        bound = gap_at_least(ran, 2, 16, workers=workers, batch=batch, lags=LAGS)
        assert bound <= best + 1e-9, ran
        positive += bound > 0
    assert positive > 20


def test_what_ends_alone_leaves_its_gap() -> None:
    ran = [Ran(100, 0, 10), Ran(100, 0, 20), Ran(10, 10, 20)]
    # Step 9 alone counts at lag 1: 109 tokens are held, 10 arrive, and nothing else changes.
    assert gap_at_least(ran, 0, 20, workers=2, batch=1, lags=[1]) == (109 - 10) / 2 / 20


def test_where_all_workers_lose_something_nothing_is_said() -> None:
    ran = [Ran(100, 0, 10), Ran(300, 0, 10)]
    assert gap_at_least(ran, 0, 20, workers=2, batch=1, lags=[1, 5]) == 0.0


def test_a_free_slot_may_hide_some_of_it() -> None:
    ran = [Ran(100, 0, 10), Ran(100, 0, 20)]
    # Two of four slots are free: the others may grow by as many tokens less.
    assert gap_at_least(ran, 0, 20, workers=2, batch=2, lags=[1]) == (109 - 2) / 2 / 20


def test_several_that_end_are_lost_by_several_workers() -> None:
    ran = [Ran(100, 0, 10)] * 3 + [Ran(100, 0, 20)]
    best = best_gap(ran, 0, 11, 4, 1)
    assert best is not None
    assert 0 < gap_at_least(ran, 0, 11, workers=4, batch=1, lags=[1]) <= best
