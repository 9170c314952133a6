from __future__ import annotations

import pytest

from mesh.page.rows import (
    DECISIONS_SHOWN,
    MARKED_SHOWN,
    ROWS_MAX,
    DecisionMark,
    DecisionShown,
    ForwardsShown,
    Health,
    chosen,
    forwards_of,
    health_of,
    joined,
    shown_at,
    some_of,
)


@pytest.mark.parametrize(
    ("gateways", "expected"),
    [
        ([], Health.UNKNOWN),
        ([Health.DOWN], Health.DOWN),
        ([Health.BUSY, Health.BUSY], Health.BUSY),
        ([Health.HEALTHY, Health.BUSY], Health.HEALTHY),
        ([Health.HEALTHY, Health.DOWN], Health.DEGRADED),
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


def row(gateway: str, request: str, *marks: DecisionMark, origin: str = "", age_ms: int = 0) -> DecisionShown:
    return DecisionShown(gateway, request, age_ms, origin=origin, marks=list(marks))


def test_both_ends_of_a_forward_are_one_row_with_the_marks_of_both() -> None:
    sent, ran = (
        row("us-1", "r-1", DecisionMark.FORWARDED),
        row("eu-1", "r-1", DecisionMark.SLOW, DecisionMark.FORWARDED, origin="us-1"),
    )
    (found,) = joined([ran, sent])
    assert (found.gateway, [hop.gateway for hop in found.hops]) == ("us-1", ["eu-1"])
    assert found.marks == [DecisionMark.SLOW, DecisionMark.FORWARDED]


def test_a_row_without_its_other_end_stands_alone() -> None:
    lonely = row("eu-1", "r-1", origin="us-1")
    assert joined([lonely]) == [lonely]


def test_requests_of_two_clients_with_the_same_id_are_not_mixed_up() -> None:
    rows = [row("us-1", "r-1"), row("ap-1", "r-1"), row("eu-1", "r-1", origin="ap-1")]
    assert {each.gateway: [hop.gateway for hop in each.hops] for each in joined(rows)} == {"us-1": [], "ap-1": ["eu-1"]}


def test_rare_decisions_are_shown_beyond_the_latest_ones() -> None:
    common = [row("us-1", f"r-{number}", DecisionMark.FORWARDED) for number in range(200)]
    rare = [row("us-1", "failed", DecisionMark.FAILED), row("us-1", "plain")]
    found = [each.request for each in chosen([*common, *rare])]
    assert found == [f"r-{number}" for number in range(DECISIONS_SHOWN)] + ["failed"]
    refused = [row("us-1", f"r-{number}", DecisionMark.REFUSED) for number in range(200)]
    slow = [row("us-1", f"s-{number}", DecisionMark.SLOW) for number in range(200)]
    assert len(chosen([*refused, *slow])) == DECISIONS_SHOWN + MARKED_SHOWN


def test_a_row_as_shown_has_a_time_and_no_age_that_would_change_at_each_look() -> None:
    hop = row("eu-1", "r-1", origin="us-1", age_ms=7)
    shown = shown_at(joined([row("us-1", "r-1", age_ms=9), hop])[0], 1_000)
    hops: object = shown["hops"]
    assert isinstance(hops, list)
    assert (shown["at_ms"], "age_ms" in shown, hops[0]["age_ms"]) == (1_000, False, None)
