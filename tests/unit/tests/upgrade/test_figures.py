from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.studies.failover.clients import SdkCall
from tests.upgrade.figures import (
    SECOND_NS,
    Checks,
    Step,
    StepFigures,
    failures_of,
    figures_of,
    judged,
    page_of,
    version_at,
)
from tests.upgrade.releases import Release

OLD, NEW = Release("v1", "aaaa", Path("old")), Release("the working tree", "bbbb", Path("new"))
US = RegionName("us")
STEPS = (
    Step("all run v1", "", 0),
    Step("gw-us to the working tree", "take-over", 10 * SECOND_NS, {"gw-us": (12 * SECOND_NS, NEW.name)}),
    Step("gw-us to v1", "drain", 20 * SECOND_NS, {"gw-us": (25 * SECOND_NS, OLD.name)}),
)
WELL = Checks(processes=6, remembered=2, lines=40, audits=2)


def call(
    left_s: int, gateway: str = "gw-us", *, fault: str = "", first_s: int | None = 1, is_open: bool = False
) -> SdkCall:
    left_ns = left_s * SECOND_NS
    return SdkCall(
        US,
        left_ns,
        None if is_open else left_ns + 2 * SECOND_NS,
        None if first_s is None else left_ns + first_s * SECOND_NS,
        SECOND_NS // 4,
        fault,
        gateway=gateway,
        ran_in="us",
    )


CALLS = (
    call(1),
    call(2, "gw-us-2", first_s=3),
    replace(call(11), ran_in="eu"),
    call(13),
    call(14, fault="cut"),
    call(15, fault="refused", first_s=None),
    call(16, is_open=True),
    call(29),
)


def figures() -> list[StepFigures]:
    return figures_of(STEPS, 30 * SECOND_NS, CALLS, [11 * SECOND_NS, 20 * SECOND_NS], OLD.name)


def test_calls_count_in_the_step_in_which_they_were_sent() -> None:
    before, there, back = figures()
    assert [each.took_s for each in (before, there, back)] == [10, 10, 10]
    assert (before.requests, before.failed, before.first_max_s, before.pause_max_s) == (2, 0, 3, 0.25)
    assert (there.requests, there.failed, there.broken, there.forwarded) == (5, 3, 2, 1)
    assert [each.rejected for each in (before, there, back)] == [0, 1, 1]
    assert (back.requests, back.answered) == (1, {OLD.name: 1})
    assert there.answered == {OLD.name: 1, NEW.name: 1}
    assert failures_of(CALLS) == {"cut": 1, "refused": 1, "no end": 1}


@pytest.mark.parametrize(
    ("gateway", "at_s", "version"),
    [("gw-us", 11, OLD), ("gw-us", 12, NEW), ("gw-us", 24, NEW), ("gw-us", 25, OLD), ("gw-us-2", 26, OLD)],
)
def test_a_gateway_is_of_the_version_that_served_it_last(gateway: str, at_s: int, version: Release) -> None:
    assert version_at(STEPS, gateway, at_s * SECOND_NS, OLD.name) == version.name


@pytest.mark.parametrize(
    ("checks", "missed"),
    [
        (WELL, 0),
        (Checks(), 4),  # aims without a look are missed
        (replace(WELL, lines_failed=1), 1),
        (replace(WELL, lines_lost=1), 1),
        (replace(WELL, lines_doubled=1), 1),
        (replace(WELL, bad_exits=["gw-us with -9"]), 1),
        (replace(WELL, strangers=["gw-us in /"]), 1),
        (replace(WELL, forgotten=["usage"]), 1),
        (replace(WELL, audit_faults=["gw-us by v1"]), 1),
    ],
)
def test_each_aim_is_judged_by_itself(checks: Checks, missed: int) -> None:
    good = figures()[:1]
    assert sum(not is_met for is_met, _ in judged(good, checks)) == missed


def test_failures_broken_streams_and_no_requests_are_missed_aims() -> None:
    assert [is_met for is_met, _ in judged(figures(), WELL)][:2] == [False, False]
    assert [is_met for is_met, _ in judged([], WELL)][:2] == [False, True]


def test_the_page_has_every_step_failure_and_fault() -> None:
    checks = replace(WELL, forgotten=["usage of gw-us"])
    checks.logged["gateway_down"] = 3
    machine = {"cpu": "one", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "idle"}
    page = page_of(
        figures(), checks, failures_of(CALLS), machine, old=OLD, new=NEW, pins=["click 8 → 9"],
        slots=2, users=3, resolvers=2, tokens=5, batch_lines=20, wait_s=6.0,
    )  # fmt: skip
    assert "| gw-us to the working tree | take-over | 10.0 | 5 | 3 | 2 | 1.00 | 0.25 | 1 | 1 | 1 | 1 |" in page
    assert "**not met**: no request failed (3 of 8 did)" in page
    assert "(2 times): usage of gw-us" in page
    assert "- 1 × `refused`" in page
    assert "click 8 → 9" in page
    assert "3 × `gateway_down`" in page
