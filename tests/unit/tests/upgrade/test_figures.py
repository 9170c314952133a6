from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.studies.failover.clients import SdkCall
from tests.upgrade.figures import (
    SECOND_NS,
    Checks,
    Played,
    ProcessLogs,
    Step,
    StepFigures,
    failures_of,
    figures_of,
    judged,
    page_of,
)
from tests.upgrade.releases import Release

OLD, NEW = Release("v1", "aaaa", Path("old")), Release("the working tree", "bbbb", Path("new"))
US = RegionName("us")
STEPS = (
    Step("all run v1", "", 0),
    Step("gw-us to the working tree", "take-over", 10 * SECOND_NS),
    Step("gw-us to v1", "drain", 20 * SECOND_NS),
)
WELL = Checks(processes=6, usage=2, orders=1, batches=2, lines=40, audits=2)


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
        request_id=f"at {left_s}",
        gateway=gateway,
        ran_in="us",
    )


def completed(gateway: str, at_s: int, attempt: str = "replica:one: completed") -> dict[str, object]:
    """Line of a gateway's log about the request that was sent at that time."""
    return {
        "event": "request",
        "outcome": "completed",
        "gateway": gateway,
        "request_id": f"at {at_s}",
        "attempts": ["peer:gw-us: busy", attempt],
    }


def logs() -> ProcessLogs:
    found = ProcessLogs()
    for version, line in (
        (OLD, completed("gw-us", 1, "peer:gw-eu: completed")),
        (NEW, completed("gw-eu", 1)),
        (OLD, completed("gw-us", 2, "peer:gw-eu: completed")),  # the answer came from gw-us-2
        (NEW, completed("gw-us", 11, "peer:gw-us-2: completed")),
        (OLD, completed("gw-us-2", 11)),
        (NEW, completed("gw-us", 13)),
        (OLD, {**completed("gw-us", 29), "outcome": "failed"}),
        (OLD, {"event": "drain_timed_out", "level": "warning"}),
        (OLD, {"event": "gateway_down", "level": "error"}),
    ):
        found.add(version.name, line)
    return found


CALLS = (
    call(1),
    call(2, "gw-us-2", first_s=3),
    call(11),
    call(13),
    call(14, fault="cut"),
    call(15, fault="refused", first_s=None),
    call(16, is_open=True),
    call(29),
)


def figures() -> list[StepFigures]:
    checks = Checks(logs=logs())
    played = Played([*STEPS], 30 * SECOND_NS, [*CALLS], [11 * SECOND_NS, 20 * SECOND_NS], [12 * SECOND_NS], checks)
    return figures_of(played)


def good() -> list[StepFigures]:
    """Steps in which each version answered, and forwarded to the other."""
    both = Counter({OLD.name: 3, NEW.name: 3})
    return [replace(figures()[0], answered=both, forwarded=Counter({(OLD.name, NEW.name): 1, (NEW.name, OLD.name): 1}))]


def test_calls_count_in_the_step_in_which_they_were_sent() -> None:
    before, there, back = figures()
    assert [each.took_s for each in (before, there, back)] == [10, 10, 10]
    assert (before.requests, before.failed, before.first_max_s, before.pause_max_s) == (2, 0, 3, 0.25)
    assert (there.requests, there.failed, there.broken) == (5, 3, 2)
    assert [each.rejected for each in (before, there, back)] == [0, 1, 1]
    assert [each.refused for each in (before, there, back)] == [0, 1, 0]
    assert failures_of(CALLS) == {"cut": 1, "refused": 1, "no end": 1}


def test_versions_of_a_request_are_those_of_the_logs_in_which_it_completed() -> None:
    before, there, back = figures()
    assert (before.answered, before.forwarded) == ({OLD.name: 1}, {(OLD.name, NEW.name): 1})
    assert (there.answered, there.forwarded) == ({NEW.name: 2}, {(NEW.name, OLD.name): 1})
    assert (back.answered, back.forwarded) == ({}, {})


def test_logs_tell_of_errors_and_of_drains_that_were_cut_off() -> None:
    assert (logs().errors, logs().late_drains) == ({"gateway_down": 1}, {OLD.name: 1})


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
        (replace(WELL, usage=0), 1),
        (replace(WELL, orders=0), 1),
        (replace(WELL, batches=0), 1),
        (replace(WELL, logs=ProcessLogs(late_drains=Counter({NEW.name: 1}))), 1),
        (replace(WELL, logs=ProcessLogs(late_drains=Counter({OLD.name: 1}))), 0),
        (replace(WELL, audit_faults=["gw-us by v1"]), 1),
    ],
)
def test_each_aim_is_judged_by_itself(checks: Checks, missed: int) -> None:
    assert sum(not is_met for is_met, _ in judged(good(), checks, OLD.name, NEW.name)) == missed


def test_failures_broken_streams_and_no_requests_are_missed_aims() -> None:
    assert [is_met for is_met, _ in judged(figures(), WELL, OLD.name, NEW.name)][:2] == [False, False]
    assert [is_met for is_met, _ in judged([], WELL, OLD.name, NEW.name)][:2] == [False, True]


@pytest.mark.parametrize(
    "step",
    [
        replace(good()[0], refused=1),
        replace(good()[0], answered=Counter({OLD.name: 6})),
        replace(good()[0], answered=Counter({NEW.name: 6})),
        replace(good()[0], forwarded=Counter({(OLD.name, NEW.name): 6, (NEW.name, NEW.name): 6})),
        replace(good()[0], forwarded=Counter({(NEW.name, OLD.name): 6, (OLD.name, OLD.name): 6})),
    ],
)
def test_versions_that_do_not_meet_and_refused_connections_are_missed_aims(step: StepFigures) -> None:
    assert sum(not is_met for is_met, _ in judged([step], WELL, OLD.name, NEW.name)) == 1


def test_the_page_has_every_step_failure_and_fault() -> None:
    checks = replace(WELL, forgotten=["usage of gw-us"], logs=logs())
    machine = {"cpu": "one", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "idle"}
    page = page_of(
        figures(), checks, failures_of(CALLS), machine, old=OLD, new=NEW, pins=["click 8 → 9"],
        slots=2, users=3, resolvers=2, tokens=5, batch_lines=20, wait_s=6.0, used=3,
    )  # fmt: skip
    assert (
        "| gw-us to the working tree | take-over | 10.0 | 5 | 3 | 2 | 1.00 | 0.25 | 1 | 1 | 0 | 2 | 0 | 1 | 0 |" in page
    )
    assert "**not met**: no request failed (3 of 8 did)" in page
    assert "exactly (2 times), an order (1), a batch (2): usage of gw-us" in page
    assert "- 1 × `refused`" in page
    assert "click 8 → 9" in page
    assert "1 × `gateway_down`" in page
