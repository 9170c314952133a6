from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from gateway.features.batches.backlog import BatchWork, place_shares
from gateway.features.batches.outlook import PlaceShare
from gateway.features.batches.state import WINDOW_S
from tests.support.batches import client_batch

NOW_S = 1_000
FRESH = client_batch("batch_z", "mine", NOW_S)


def work(name: str, work_s: float | None, *, tenant: str = "acme", running: bool = False, **others: float) -> BatchWork:
    return BatchWork(client_batch(name, tenant, 0), running, work_s, **others)


def shares(*works: BatchWork, batches_max: int = 8, tenant_max: int = 2, lines: int = 10) -> list[PlaceShare]:
    return place_shares(
        FRESH, list(works), lines_at_once=lines, batches_max=batches_max, tenant_max=tenant_max, now_s=NOW_S
    )


def test_a_batch_alone_has_all_places_at_once() -> None:
    assert shares() == [PlaceShare(0.0, 1.0)]


def test_a_batch_shares_with_those_that_run_until_they_end() -> None:
    """Two others do 100 s and 200 s of work at a third of ten lines each; then one is left beside the fresh batch."""
    told = shares(work("a", 100.0, running=True), work("b", 200.0, tenant="other", running=True))
    assert told == [PlaceShare(0.0, 1 / 3), PlaceShare(30.0, 0.5), PlaceShare(50.0, 1.0)]


def test_a_batch_waits_for_its_turn() -> None:
    told = shares(work("a", 100.0, running=True), work("b", 50.0), batches_max=1)
    assert told == [PlaceShare(0.0, 0.0), PlaceShare(15.0, 1.0)]


def test_a_tenant_waits_for_its_own_batches() -> None:
    told = shares(work("a", 100.0, tenant="mine", running=True), work("b", 60.0, tenant="mine", running=True))
    assert told == [PlaceShare(0.0, 0.0), PlaceShare(12.0, 0.5), PlaceShare(20.0, 1.0)]


def test_want_of_room_makes_the_batches_before_it_slower() -> None:
    told = shares(work("a", 100.0, running=True, lines_max=4.0))
    assert told == [PlaceShare(0.0, 0.5), PlaceShare(50.0, 1.0)]


def test_a_batch_of_unknown_pace_lasts_until_its_window_ends() -> None:
    told = shares(work("a", None, running=True), batches_max=1)
    assert told == [PlaceShare(0.0, 0.0), PlaceShare(WINDOW_S - NOW_S, 1.0)]


def test_a_batch_whose_window_ends_while_it_waits_never_begins() -> None:
    late = BatchWork(replace(client_batch("b"), expires_s=NOW_S + 5), is_running=False, work_s=70.0)
    assert shares(work("a", 100.0, running=True), late, batches_max=1) == [PlaceShare(0.0, 0.0), PlaceShare(10.0, 1.0)]


def test_what_others_do_beside_the_batch_is_all_their_work() -> None:
    works = [work(f"b{number:03}", float(number % 17), tenant=f"t{number % 5}") for number in range(256)]
    told = shares(*works)
    assert told[-1].share == 1
    done_s = [10 * (1 - each.share) * (after.from_s - each.from_s) for each, after in pairwise(told)]
    assert min(done_s) > 0
    assert sum(done_s) == pytest.approx(sum(each.work_s or 0 for each in works))
