"""Rows that features add to the status."""

from __future__ import annotations

from gateway.features.prices.status import PricesView
from gateway.features.scaling.status import ScaledPoolView, ScalingView
from gateway.features.status import StatusView


def test_a_view_adds_nothing_by_itself() -> None:
    view = StatusView()
    assert not [*view.problems(), *view.grave_problems(), *view.headlines(), *view.tables()]


def test_prices_that_are_old_or_refused_are_complained_of() -> None:
    old = PricesView(
        "file", "line 3", "abc", "EUR", age_s=7200.0, valid_s=-172_800.0, since_s=60.0, next_change_s=5400.0
    )
    assert [each.text for each in old.problems()] == [
        "a price list was refused, and the one before is in force: line 3",
        "the price list was to be looked at again 2 days ago (valid_until)",
    ]
    assert list(old.headlines()) == [
        "prices: the region file's list abc in EUR, in force for 2.0 h; these since 1 min, others in 1.5 h"
    ]
    assert not list(PricesView("none", "").headlines())


def test_a_pool_that_may_not_grow_is_complained_of_and_shown() -> None:
    pool = ScaledPoolView("m", "default", 4, "load", 3, 4, 9.0, 0.0, 0.0, 2)
    view = ScalingView([pool], "it answered 500")
    assert [each.text for each in view.problems()] == [
        "pool default of m needs 2 replicas more than its maximum allows",
        "calls of the scaling webhook fail: it answered 500",
    ]
    (table,) = view.tables()
    assert table.row_count == 1
    assert not list(ScalingView([], "").tables())
