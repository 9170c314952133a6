from __future__ import annotations

from gateway.records.forward_rates import ForwardDirection, ForwardRates
from tests.support.core import SECOND

EU_OUT = "eu-1", ForwardDirection.OUT
EU_IN = "eu-1", ForwardDirection.IN


def test_what_was_added_in_the_last_minute_is_told_and_nothing_older() -> None:
    counts = {EU_OUT: 100, EU_IN: 7}
    rates = ForwardRates(lambda: dict(counts), 0)
    assert rates.per_minute(SECOND) == {}
    for second in range(1, 201):
        counts[EU_OUT] += 2
        rates.look(second * SECOND)
    told = rates.per_minute(200 * SECOND)
    assert 119 <= told[EU_OUT] <= 121
    assert EU_IN not in told
    for second in range(201, 270):
        rates.look(second * SECOND)
    assert rates.per_minute(270 * SECOND) == {}


def test_soon_after_the_start_it_is_told_as_if_it_went_on_so() -> None:
    counts = {EU_IN: 0}
    rates = ForwardRates(lambda: dict(counts), 0)
    counts[EU_IN] = 10
    assert rates.per_minute(30 * SECOND) == {EU_IN: 20}


def test_it_keeps_a_bounded_number_of_looks_however_often_it_looks() -> None:
    rates = ForwardRates(dict, 0)
    for look in range(10_000):
        rates.look(look * SECOND // 10)
    assert len(rates._looks) <= 14
