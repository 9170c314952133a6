"""Calls are excused only where the fault struck their own client, and nothing of the mesh could have answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.excuses import NO_NAME, UNDER_WAY, FaultTimes, excuse_of
from loadgen.studies.wan.faults import AP, EU, FAULTS

SECOND = 1_000_000_000
BY_NAME = {each.name: each for each in FAULTS}
TIMES = FaultTimes(100 * SECOND, 101 * SECOND, 120 * SECOND)
GATEWAY = "gw-ap-northeast-1"
OWN = {GATEWAY}
UNDER_WAY_CALL = SdkCall(AP, 98 * SECOND, 110 * SECOND, first_ns=99 * SECOND, fault="cut", gateway=GATEWAY)
UNNAMED = SdkCall(AP, 105 * SECOND, 107 * SECOND, fault="no name server answers")


@pytest.mark.parametrize("name", ["frozen host", "killed gateway"])
def test_an_answer_under_way_through_a_gateway_that_stops_is_excused(name: str) -> None:
    assert excuse_of(UNDER_WAY_CALL, BY_NAME[name], TIMES, OWN) == UNDER_WAY
    for other in (
        replace(UNDER_WAY_CALL, region=EU),
        replace(UNDER_WAY_CALL, first_ns=None),
        replace(UNDER_WAY_CALL, first_ns=102 * SECOND),
        replace(UNDER_WAY_CALL, ended_ns=99 * SECOND),
        replace(UNDER_WAY_CALL, gateway="gw-us-east-1"),
    ):
        assert excuse_of(other, BY_NAME[name], TIMES, OWN) is None
    assert excuse_of(replace(UNDER_WAY_CALL, ended_ns=None), BY_NAME[name], TIMES, OWN) == UNDER_WAY


@pytest.mark.parametrize("name", ["partition", "clock ahead", "frozen host of the database", "address that moves"])
def test_an_answer_under_way_through_a_gateway_that_goes_on_is_not(name: str) -> None:
    assert excuse_of(UNDER_WAY_CALL, BY_NAME[name], TIMES, OWN) is None


@pytest.mark.parametrize("name", ["name server silent", "name server that lies"])
def test_a_call_without_an_answer_is_excused_while_its_name_server_is_at_fault(name: str) -> None:
    assert excuse_of(UNNAMED, BY_NAME[name], TIMES, OWN) == NO_NAME
    for other in (
        replace(UNNAMED, region=EU),
        replace(UNNAMED, gateway=GATEWAY),
        replace(UNNAMED, is_refused=True),
        replace(UNNAMED, ended_ns=99 * SECOND),
        replace(UNNAMED, left_ns=140 * SECOND, ended_ns=141 * SECOND),
    ):
        assert excuse_of(other, BY_NAME[name], TIMES, OWN) is None
    assert excuse_of(UNNAMED, BY_NAME["partition"], TIMES, OWN) is None
