"""Plans of faults come from a seed alone, leave nothing out, and explain only failures that they can cause."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.report import RequestReport
from loadgen.studies.long.faults import (
    RETURN_S,
    SLOT_S,
    WARM_S,
    LongFaultKind,
    LongFaultPlayed,
    PlannedFault,
    plan_faults,
    targets_of,
    unexplained,
)
from loadgen.vocabulary import RequestEnd

GATEWAYS, ENGINES, REGIONS = ("g1", "g2", "g3"), ("e1", "e2"), ("r1", "r2", "r3")
HERE = RegionName("r1")


def plan(seconds: float = 480.0, seed: int = 1) -> list[PlannedFault]:
    return plan_faults(seconds, seed, targets_of(GATEWAYS, ENGINES, "c", REGIONS))


def test_a_seed_is_one_plan_and_another_seed_another() -> None:
    assert plan() == plan()
    assert plan() != plan(seed=2)
    assert plan(60.0) == plan()[:1], "a longer run begins as a shorter one"


def test_every_kind_and_every_target_comes_before_any_comes_again() -> None:
    planned = plan(3 * len(LongFaultKind) * SLOT_S + WARM_S + RETURN_S)
    for begin in range(0, len(planned), len(LongFaultKind)):
        assert {each.kind for each in planned[begin : begin + len(LongFaultKind)]} == {*LongFaultKind}
    killed = [each.target for each in planned if each.kind is LongFaultKind.KILL_GATEWAY]
    assert sorted(killed) == [*GATEWAYS]
    assert {each.target for each in planned if each.kind is LongFaultKind.CUT} == {*REGIONS}


def test_faults_follow_each_other_and_leave_time_to_fill_and_to_return() -> None:
    planned = plan()
    assert all(one.at_s + one.lasts_s < other.at_s for one, other in pairwise(planned))
    assert planned[0].at_s >= WARM_S
    assert planned[-1].at_s + planned[-1].lasts_s < 480.0 - RETURN_S
    assert plan(WARM_S + RETURN_S) == []


def failed(sent_s: float, ended_s: float, end: RequestEnd = RequestEnd.FAILED) -> RequestReport:
    return RequestReport(HERE, end, round(sent_s * 1e9), round(ended_s * 1e9))


def played(kind: LongFaultKind) -> list[LongFaultPlayed]:
    return [LongFaultPlayed(PlannedFault(50.0, kind, "some", 5.0), 50.0, 56.0)]


@pytest.mark.parametrize(("sent_s", "ended_s", "is_open"), [
    (40.0, 49.9, False), (40.0, 50.0, True), (51.0, 52.0, True), (64.0, 65.0, True), (64.1, 65.0, False),
])  # fmt: skip
def test_a_death_explains_failures_of_requests_that_were_open(sent_s: float, ended_s: float, is_open: bool) -> None:
    assert unexplained(failed(sent_s, ended_s), played(LongFaultKind.KILL_GATEWAY)) is not is_open
    assert unexplained(failed(sent_s, ended_s, RequestEnd.UNFINISHED), played(LongFaultKind.CUT)) is not is_open


def test_engines_and_the_controller_explain_no_failure() -> None:
    explaining = {each for each in LongFaultKind if not unexplained(failed(51.0, 52.0), played(each))}
    assert explaining == {LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY, LongFaultKind.CUT}


def test_what_did_not_fail_needs_no_fault() -> None:
    assert not unexplained(failed(1.0, 2.0, RequestEnd.COMPLETED), [])
