from __future__ import annotations

import pytest

from mesh.page.shown import ROWS_MAX, ForwardsShown, Health, forwards_of, health_of, some_of


@pytest.mark.parametrize(
    ("gateways", "expected"),
    [
        ([], Health.UNKNOWN),
        ([Health.DOWN], Health.DOWN),
        ([Health.BUSY, Health.BUSY], Health.BUSY),
        ([Health.WELL, Health.BUSY], Health.WELL),
        ([Health.WELL, Health.DOWN], Health.DEGRADED),
        ([Health.CLOSED, Health.DOWN], Health.DEGRADED),
    ],
)
def test_a_region_fares_as_its_gateways_do_together(gateways: list[Health], expected: Health) -> None:
    assert health_of(gateways) is expected


def test_forwards_between_two_regions_are_one_arrow_and_within_one_none() -> None:
    flows = [("us", "eu", 10.0, 1), ("us", "eu", 5.04, 2), ("us", "us", 7.0, 1), ("eu", "us", 0.0, 0)]
    flows.append(("us", "", 1.0, 1))
    assert forwards_of(flows) == [ForwardsShown("us", "eu", 15.0, 3)]


def test_a_table_has_a_bound_and_says_what_is_left_out() -> None:
    assert some_of(list(range(ROWS_MAX + 3))) == {"rows": list(range(ROWS_MAX)), "left_out": 3}
    assert some_of([1]) == {"rows": [1], "left_out": 0}
