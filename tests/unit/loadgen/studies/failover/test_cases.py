"""The cases that are played, and the attribution of each failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.demo.watch import Cause, Death
from loadgen.studies.failover.cases import CASES, EarlyCall, _failure, early_calls
from loadgen.studies.failover.clients import SdkCall

DEATH = Death(frozenset({"127.77.3.1"}), 10, 12, 1_000)
CUT = SdkCall(RegionName("us"), 5, 15, first_ns=7, fault="RemoteProtocolError: peer closed connection")
NOBODY = replace(CUT, left_ns=20, ended_ns=30, first_ns=None, fault="no process listens at '127.77.3.1'")


def test_one_two_and_all_but_one_die_and_one_beside_a_sibling() -> None:
    alone = [each for each in CASES if not each.has_sibling]
    assert {each.dead for each in alone if not each.is_silent} == {1, 2, alone[0].gateways - 1}
    assert any(each.has_sibling for each in CASES)
    assert any(each.is_silent for each in CASES)


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (CUT, Cause.IN_FLIGHT),
        (NOBODY, Cause.CACHED),
        (replace(NOBODY, fault="no process listens at '127.77.4.1'"), Cause.OTHER),
        (replace(CUT, is_refused=True, fault="InternalServerError: Error code: 503"), Cause.OTHER),
        (replace(CUT, left_ns=13), Cause.OTHER),
    ],
)
def test_a_failure_is_of_the_death_that_explains_it_or_of_none(asked: SdkCall, cause: Cause) -> None:
    assert _failure(asked, DEATH) == (cause, asked.has_begun, asked.fault)


def test_calls_before_the_kill_are_told_by_the_region_of_the_gateway_that_answered() -> None:
    us, eu = RegionName("us"), RegionName("eu")
    second, killed_ns = 1_000_000_000, 10_000_000_000
    near = SdkCall(us, 2 * second, first_ns=2 * second + 7, gateway="gw-us", ran_in="us")
    asked = [
        replace(near, left_ns=0, first_ns=second),
        replace(near, left_ns=second - 1, first_ns=second + 1),
        replace(near, ran_in=""),
        replace(near, gateway="gw-eu", ran_in="eu", first_ns=killed_ns - 1),
        replace(near, gateway="gw-eu"),
        replace(near, gateway="gw-eu", first_ns=killed_ns),
        replace(near, gateway="", first_ns=None, fault="no process listens"),
    ]
    assert early_calls(asked, {GatewayId("gw-us"): us, GatewayId("gw-eu"): eu}, killed_ns) == (
        EarlyCall(is_further=False, is_forwarded=False, first_token_ns=7),
        EarlyCall(is_further=True, is_forwarded=False, first_token_ns=8 * second - 1),
        EarlyCall(is_further=True, is_forwarded=True, first_token_ns=7),
    )
    assert early_calls((), {}, killed_ns) == ()
