from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gateway.features.batches.book import BatchBook
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.progress import SHOWN_MAX, batches_view, page_table
from gateway.features.batches.state import BatchStatus, ClientBatch
from tests.support.batches import book_in, client_batch

SECOND_NS = 1_000_000_000
DAY_S = 86_400
NOW_S = 50_000


def batch(name: str, expires_s: int, **changes: object) -> ClientBatch:
    made = replace(client_batch(name, created_s=expires_s - DAY_S), status=BatchStatus.IN_PROGRESS, total=100)
    return replace(made, **changes)


def book_of(folder: Path, *batches: ClientBatch) -> BatchBook:
    book = book_in(folder)
    book.batches = {each.id: each for each in batches}
    return book


def test_the_end_is_expected_by_the_rate(tmp_path: Path) -> None:
    late = batch("late", NOW_S + DAY_S, completed=10)
    near = batch("near", NOW_S + 100, completed=30, failed=20)
    done = batch("done", NOW_S, status=BatchStatus.COMPLETED)
    book = book_of(tmp_path, late, near, done)
    book.rates["near"] = rate = LineRate(0)
    rate.add(10, 10 * SECOND_NS)
    view = batches_view(book, 4, str.upper, NOW_S, 10 * SECOND_NS)
    assert [each.id for each in view.batches] == ["near", "late"]
    assert (view.at_risk, view.stopped, view.left_out) == (1, 4, 0)
    near_shown, late_shown = view.batches
    assert (near_shown.tenant, near_shown.done, near_shown.window_left_s) == ("ACME", 50, 100)
    assert near_shown.expected_in_s in (50, 51), "50 lines at one a second"
    assert late_shown.expected_in_s is None, "it does not run"
    first, second = page_table(view, NOW_S).rows
    assert first[:5] == ("near", "ACME", "in progress", 100, 50)
    assert first[6] == (NOW_S + 100) * 1000
    assert second[5] is None


def test_some_of_many_batches_are_shown(tmp_path: Path) -> None:
    book = book_of(tmp_path, *(batch(f"b{number}", NOW_S + number) for number in range(SHOWN_MAX + 5)))
    view = batches_view(book, 0, str, NOW_S, 0)
    assert (len(view.batches), view.left_out) == (SHOWN_MAX, 5)
    assert page_table(view, NOW_S).left_out == 5
