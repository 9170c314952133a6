"""The judgement of a history: a sound one passes, and each seeded violation is found by its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId, RegionName
from gateway.records.audit import (
    AuditAttempt,
    AuditLine,
    AuditPlace,
    AuditProcessed,
    AuditRecord,
    ForbiddenPlace,
    LostAuditLines,
)
from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.histories import (
    OwnersSeen,
    first_answer_s,
    led_away,
    overlaps,
    ran_twice,
    taken_in,
    violations,
)

SECOND = 1_000_000_000
US, EU = AuditPlace("us-east-1", "US"), AuditPlace("eu-west-1", "EU")
GW_US, GW_EU = GatewayId("gw-us-east-1"), GatewayId("gw-eu-west-1")


def line(gateway: str, place: AuditPlace, target: str, target_place: AuditPlace, *, came_from: str = "") -> AuditLine:
    attempt = AuditAttempt(target, target_place.region, target_place.jurisdiction, "digest", "rule", "completed")
    return AuditLine(
        "2026-01-01T00:00:00Z", gateway, place.region, place.jurisdiction, "r1", US, "digest", "rule", "completed",
        origin_gateway=came_from, attempts=(attempt,),
        processed=AuditProcessed("eu-west-1-0", "eu-west-1", "EU"),
    )  # fmt: skip


ORIGIN = line(GW_US, US, f"peer:{GW_EU}", EU)
SERVED = line(GW_EU, EU, "replica:eu-west-1-0", EU, came_from=GW_US)
CALL = SdkCall(RegionName("us-east-1"), 0, 5, 3, request_id="r1", gateway=GW_US, ran_in="eu-west-1")
AT_HOME = replace(line(GW_EU, EU, "replica:eu-west-1-0", EU), request="r0", origin=EU)
OTHER = changed(CALL, region=RegionName("eu-west-1"), request_id="r0", gateway=GW_EU)
GATEWAYS = {GW_US: RegionName("us-east-1"), GW_EU: RegionName("eu-west-1")}
OWNERS = [OwnersSeen(second * SECOND, {GW_US: frozenset({"us-0"}), GW_EU: frozenset({"eu-0"})}) for second in range(20)]


def found(
    calls: list[SdkCall] | None = None,
    records: list[AuditRecord] | None = None,
    owners: list[OwnersSeen] | None = None,
) -> list[str]:
    """Rules that are violated; each history has a call of the other region's client besides."""
    return judged(
        [OTHER, *([CALL] if calls is None else calls)],
        [AT_HOME, *([ORIGIN, SERVED] if records is None else records)],
        OWNERS if owners is None else owners,
    )


def judged(calls: list[SdkCall], records: list[AuditRecord], owners: list[OwnersSeen]) -> list[str]:
    told = violations(
        calls,
        records,
        owners,
        gateways=GATEWAYS,
        sound_ns=5 * SECOND,
        overlap_max_ns=3 * SECOND,
    )
    return [each.rule for each in told]


def test_a_forwarded_request_that_was_answered_is_a_sound_history() -> None:
    assert found() == []
    assert ran_twice([ORIGIN, SERVED]) == 0


@pytest.mark.parametrize(
    ("records", "rule"),
    [
        ([ORIGIN, ORIGIN, SERVED], "one end per request"),
        ([SERVED], "one end per request"),
        ([ORIGIN], "every record is there"),
        ([ORIGIN, ORIGIN, SERVED], "every record is there"),
        ([ORIGIN, SERVED, SERVED], "nothing runs that was not sent"),
        ([ORIGIN, replace(SERVED, request="r2")], "nothing runs that was not sent"),
        ([ORIGIN, replace(SERVED, origin_gateway="gw-ap")], "nothing runs that was not sent"),
        ([replace(ORIGIN, outcome="failed"), SERVED], "answers are the gateways'"),
        ([replace(ORIGIN, processed=None), SERVED], "answers are the gateways'"),
        (
            [replace(ORIGIN, processed=AuditProcessed("us-east-1-0", "us-east-1", "US")), SERVED],
            "answers are the gateways'",
        ),
        ([ORIGIN, SERVED, LostAuditLines("2026-01-01T00:00:00Z", GW_EU, 3)], "every end is written"),
        (
            [
                ORIGIN,
                SERVED,
                ForbiddenPlace("2026-01-01T00:00:00Z", GW_US, "r1", GW_EU, AuditProcessed("x", "sa-east-1", "BR")),
            ],
            "nothing outside policy",
        ),
    ],
)
def test_a_seeded_violation_of_the_records_is_found(records: list[AuditRecord], rule: str) -> None:
    assert rule in found(records=records)


@pytest.mark.parametrize(
    "break_it",
    [lambda call: changed(call, request_id="r9"), lambda call: changed(call, request_id="")],
    ids=["of no gateway", "without an id"],
)
def test_an_answer_that_no_gateway_wrote_down_is_found(break_it: Callable[[SdkCall], SdkCall]) -> None:
    assert found([break_it(CALL)]) != []


def test_a_call_that_failed_or_never_ended_needs_a_line_only_where_its_client_saw_a_head() -> None:
    failed = changed(CALL, request_id="", fault="ConnectError")
    assert found([CALL, failed, changed(CALL, ended_ns=None), changed(CALL, fault="cut")]) == []
    assert found([CALL, changed(CALL, request_id="r9", fault="cut")]) == ["one end per request"]


def test_a_history_without_records_is_not_sound() -> None:
    assert judged([], [], []) == 6 * ["every record is there"]
    assert judged([CALL], [AT_HOME, ORIGIN, SERVED], OWNERS) == ["every record is there"]
    assert judged([CALL, changed(OTHER, request_id="", fault="cut")], [ORIGIN], OWNERS)[0] == "every record is there"


def test_owners_that_were_not_seen_for_as_long_as_an_overlap_may_take_are_not_judged_sound() -> None:
    assert found(owners=OWNERS[:8]) == 2 * ["every record is there"]
    assert found(owners=OWNERS[:9]) == []
    silent = [OwnersSeen(each.at_ns, {GW_US: each.replicas[GW_US]}) for each in OWNERS]
    assert found(owners=[*OWNERS[:8], *silent[8:]]) == ["every record is there"]


def test_an_answer_of_another_gateway_than_its_line_says_is_found() -> None:
    assert found([changed(CALL, gateway=GW_EU)]) == ["answers are the gateways'"]
    assert found([changed(CALL, gateway="", fault="cut")]) == ["answers are the gateways'"]


def test_two_owners_are_allowed_for_so_long_once_links_are_sound() -> None:
    both = frozenset({"us-0"})

    def shared(first: int, last: int) -> list[OwnersSeen]:
        return [
            OwnersSeen(each.at_ns, {**each.replicas, GW_EU: both}) if first <= each.at_ns / SECOND <= last else each
            for each in OWNERS
        ]

    assert found(owners=shared(6, 9)) == []
    assert found(owners=shared(6, 10)) == ["stated overlap of owners"]
    assert found(owners=shared(0, 8)) == [], "counted from the time at which links are sound"
    assert overlaps(shared(6, 9), 0) == {"us-0": (3 * SECOND, (GW_US, GW_EU))}


def test_an_overlap_ends_by_an_answer_without_the_replica_and_not_by_silence() -> None:
    us, eu = {GW_US: frozenset({"us-0"})}, {GW_EU: frozenset({"us-0"})}
    both, apart = us | eu, us | {GW_EU: frozenset({"eu-0"})}

    def longest(*looks: dict[GatewayId, frozenset[str]]) -> int:
        found = overlaps([OwnersSeen(at * SECOND, each) for at, each in enumerate(looks)], 0)
        return found["us-0"][0] // SECOND if found else 0

    assert longest(both, us, eu, both) == 3, "either of the two did not answer meanwhile"
    assert longest(both, apart, both, both) == 1
    assert longest(both, us, us) == 0, "the second one may have gone with it"
    assert longest(us, eu, apart) == 0, "the two were never seen together"


def test_a_request_that_two_engines_ran_to_the_end_is_counted() -> None:
    at_home = replace(ORIGIN, attempts=(*ORIGIN.attempts, replace(ORIGIN.attempts[0], target="replica:us-east-1-0")))
    assert ran_twice([at_home, SERVED]) == 1


def test_requests_of_other_gateways_are_counted_without_those_that_were_refused() -> None:
    refused = replace(SERVED, request="r2", outcome="refused_overloaded")
    assert taken_in([ORIGIN, SERVED, refused, LostAuditLines("2026-01-01T00:00:00Z", GW_EU, 3)]) == 1


def test_a_killed_gateway_has_no_line_of_what_it_had_and_no_client_has_the_whole_answer() -> None:
    def told(
        call: SdkCall, records: list[AuditRecord], *killed: str, unwritten_ns: tuple[int, int] = (0, 0)
    ) -> list[str]:
        found = violations(
            [OTHER, call], [AT_HOME, *records], OWNERS, gateways=GATEWAYS, sound_ns=0, overlap_max_ns=SECOND,
            killed=killed, unwritten_ns=unwritten_ns,
        )  # fmt: skip
        return [each.rule for each in found if not each.about.startswith("gw-")]

    cut = changed(CALL, fault="cut")
    assert told(cut, [SERVED], GW_US) == []
    assert told(cut, [SERVED], GW_EU) == ["one end per request", "nothing runs that was not sent"]
    assert told(CALL, [SERVED], GW_US) == ["one end per request"], "its client has the whole answer"
    assert CALL.ended_ns is not None
    for first, last, is_unwritten in ((0, 0, True), (1, 1, False), (-1, -1, False)):
        unwritten_ns = CALL.ended_ns + first, CALL.ended_ns + last
        assert (told(CALL, [SERVED], GW_US, unwritten_ns=unwritten_ns) == []) is is_unwritten
        assert (told(CALL, [ORIGIN], GW_EU, unwritten_ns=unwritten_ns) == []) is is_unwritten
    assert told(cut, [replace(ORIGIN, attempts=()), SERVED], GW_US) == ["nothing runs that was not sent"]


def test_the_first_answer_is_of_a_call_made_after_that_moment() -> None:
    us = RegionName("us-east-1")
    made = [
        SdkCall(us, left * SECOND, first_ns=first * SECOND, gateway=gateway)
        for left, first, gateway in ((1, 4, GW_EU), (3, 9, GW_EU), (3, 7, GW_EU), (2, 5, GW_US))
    ]
    calls = [
        *made,
        SdkCall(us, 3 * SECOND, gateway=GW_EU),
        SdkCall(RegionName("eu-west-1"), 3 * SECOND, first_ns=4 * SECOND),
    ]
    assert first_answer_s(calls, us, {GW_EU}, 2 * SECOND) == 5.0
    assert first_answer_s(calls, us, {GW_US}, 2 * SECOND) == 3.0
    assert first_answer_s(calls, us, {GW_US}, 3 * SECOND) is None


def test_calls_are_led_away_whose_answer_another_region_began_in_that_time() -> None:
    away = changed(CALL, gateway=GW_EU)
    unanswered = changed(away, first_ns=None)
    calls = [CALL, OTHER, away, unanswered, changed(away, first_ns=9)]
    assert led_away(calls, RegionName("us-east-1"), GATEWAYS, 2, 9) == 1
