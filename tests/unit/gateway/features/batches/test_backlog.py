from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from gateway.features.batches.backlog import BatchWork, place_shares
from gateway.features.batches.outlook import PlaceShare
from gateway.features.batches.state import WINDOW_S
from tests.support.batches import client_batch

NOW_S = 1_000
FRESH = replace(client_batch("batch_z", "mine", NOW_S), model="m")


def work(
    name: str, work_s: float | None, *, tenant: str = "acme", running: bool = False, model: str = "m", **others: float
) -> BatchWork:
    return BatchWork(replace(client_batch(name, tenant, 0), model=model), running, work_s, **others)


def shares(*works: BatchWork, batches_max: int = 8, tenant_max: int = 2, lines: int = 10) -> list[PlaceShare]:
    return place_shares(
        FRESH, list(works), lines_at_once=lines, batches_max=batches_max, tenant_max=tenant_max, now_s=NOW_S
    )


def even(from_s: float, share: float) -> PlaceShare:
    """Shares beside batches of the same model."""
    return PlaceShare(from_s, share, share)


def test_a_batch_alone_has_all_places_at_once() -> None:
    assert shares() == [even(0, 1)]


def test_a_batch_shares_with_those_that_run_until_they_end() -> None:
    """Two others do 100 s and 200 s of work at a third of ten lines each; then one is left beside the fresh batch."""
    told = shares(work("a", 100.0, running=True), work("b", 200.0, tenant="other", running=True))
    assert told == [even(0, 1 / 3), even(30, 0.5), even(50, 1)]


def test_a_batch_waits_for_its_turn() -> None:
    told = shares(work("a", 100.0, running=True), work("b", 50.0), batches_max=1)
    assert told == [even(0, 0), even(15, 1)]


def test_a_tenant_waits_for_its_own_batches() -> None:
    told = shares(work("a", 100.0, tenant="mine", running=True), work("b", 60.0, tenant="mine", running=True))
    assert told == [even(0, 0), even(12, 0.5), even(20, 1)]


def test_batches_of_one_model_share_its_room_and_all_batches_the_places() -> None:
    """The other has a room of four lines, of which the fresh batch takes half only where it wants it, too."""
    assert shares(work("a", 100.0, running=True, room=4.0)) == [even(0, 0.5), even(50, 1)]
    told = shares(work("a", 100.0, running=True, room=4.0, model="other"))
    assert told == [PlaceShare(0.0, 0.5, 1.0), even(25, 1)]
    assert shares(work("a", 100.0, running=True, room=40.0, model="other"))[1] == even(20, 1)


def test_a_batch_of_unknown_pace_lasts_until_its_window_ends() -> None:
    told = shares(work("a", None, running=True), batches_max=1)
    assert told == [even(0, 0), even(WINDOW_S - NOW_S, 1)]


def test_a_batch_whose_window_ends_while_it_waits_never_begins() -> None:
    late = BatchWork(replace(client_batch("b"), expires_s=NOW_S + 5), is_running=False, work_s=70.0)
    assert shares(work("a", 100.0, running=True), late, batches_max=1) == [even(0, 0), even(10, 1)]


def test_what_others_do_beside_the_batch_is_all_their_work() -> None:
    works = [work(f"b{number:03}", float(number % 17), tenant=f"t{number % 5}") for number in range(256)]
    told = shares(*works)
    assert told[-1].places == 1
    done_s = [10 * (1 - each.places) * (after.from_s - each.from_s) for each, after in pairwise(told)]
    assert min(done_s) > 0
    assert sum(done_s) == pytest.approx(sum(each.work_s or 0 for each in works))
