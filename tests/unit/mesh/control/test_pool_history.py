from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.predictors.arrays import TOKENS_MAX
from mesh.control import codec
from mesh.control.pool_history import COUNT_MAX, LENGTH_MAX, MESSAGE_BYTES_MIN, ROWS_MAX, history_fault, packed
from tests.support.histories import history_of

GOOD = history_of(5, 6, 7, added=9, meanwhile=2)


def test_a_history_says_what_was_recorded_and_has_no_faults() -> None:
    assert history_fault(GOOD) == ""
    assert len(GOOD) == 3
    assert GOOD.rows() == [(10, 5, 2), (10, 6, 2), (10, 7, 2)]


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        ({"prompt_tokens": packed([1, LENGTH_MAX + 1, 3])}, "prompt_tokens: 16777217 is above"),
        ({"prompt_tokens": b""}, "prompt_tokens: it has 0 bytes, and 3 requests take 12"),
        ({"output_tokens": packed([LENGTH_MAX + 1, 1, 1])}, "output_tokens: 16777217 is above"),
        ({"output_tokens": packed([1, 1, 1]) + b"\0"}, "output_tokens: it has 13 bytes, and 3 requests take 12"),
        ({"ended_meanwhile": packed([ROWS_MAX + 1, 0, 0])}, "ended_meanwhile: 4001 is above 4000"),
        ({"output_tokens": packed([0] * 10)}, "output_tokens: its 10 requests are more than 9"),
        ({"added": 5_000, "output_tokens": packed([0] * (ROWS_MAX + 1))}, "output_tokens: its 4001 requests are more"),
        ({"added": COUNT_MAX + 1}, "added: 281474976710657 is not between 0 and"),
    ],
)
def test_a_history_that_no_gateway_makes_is_refused_by_pool_and_column(spoilt: dict[str, object], fault: str) -> None:
    found = history_fault(replace(GOOD, **spoilt))
    assert found.startswith(f"history of pool pd of us-1: {fault}")


def test_the_largest_history_fits_into_every_stream() -> None:
    name = "a" * 64
    largest = history_of(*[LENGTH_MAX] * ROWS_MAX, added=COUNT_MAX, by=name, home=name)
    largest = replace(largest, pool=name)
    assert history_fault(largest) == ""
    assert codec.said_by_gateway(largest).ByteSize() <= MESSAGE_BYTES_MIN - 1024
    assert codec.read_from_gateway(codec.said_by_gateway(largest)) == largest


def test_only_the_newest_requests_travel() -> None:
    many = history_of(*range(1, ROWS_MAX + 3), meanwhile=2 * ROWS_MAX)
    assert len(many) == ROWS_MAX
    assert many.rows()[0] == (10, 3, 2)
    assert many.added == ROWS_MAX + 2
    assert history_fault(many) == ""


def test_what_may_travel_is_what_predictors_take() -> None:
    assert LENGTH_MAX == TOKENS_MAX
