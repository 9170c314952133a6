"""Statements of the page: counts that differ, tools that failed, and tools that are not installed."""

from __future__ import annotations

from dataclasses import replace

from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.outcomes import KeptRun, OutsideOutcome, RunOutcome
from loadgen.studies.outside.page import page_of
from loadgen.studies.outside.readings import Reading
from loadgen.studies.outside.tools import RUNS, TOOLS, WRK

MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "Python", "core": "plain Python"}
AIPERF_RUN = RUNS[0]
WRK_RUN = next(each for each in RUNS if each.tool is WRK)
KEPT = KeptRun(0, 12.4, 1.5, RunCounts(10, 2, 0, 4000, 480), (40, 41))
EQUAL = RunOutcome(AIPERF_RUN, KEPT, Reading(RunCounts(10, 2, 0, 4000, 480), (("requests/s", "5"),)), "")
VERSIONS = {tool.name: "1.2" for tool in TOOLS}


def page(*runs: RunOutcome) -> str:
    return page_of(OutsideOutcome(runs, VERSIONS, {}), TOOLS, MACHINE)


def test_equal_counts_are_called_equal_and_nothing_failed() -> None:
    text = page(EQUAL)
    assert "5 of 5 counts are equal" in text
    assert "| aiperf, concurrency sweep | output tokens | 480 | 480 | equal |" in text
    assert "## Failures\n\nNone.\n" in text
    assert "$ aiperf profile --model $MODEL --url $US --url $EU --url $AP" in text
    assert "was 1.5 to 1.5 before the runs" in text


def test_a_difference_without_a_reason_is_a_failure() -> None:
    text = page(replace(EQUAL, reading=Reading(RunCounts(completed=12))))
    assert "0 of 1 counts are equal" in text
    assert "| completed requests | 12 | 10 | −2 |" in text
    assert "- aiperf, concurrency sweep: completed requests differ, and the reason is not known." in text


def test_a_difference_with_a_reason_is_explained_and_no_failure() -> None:
    text = page(RunOutcome(WRK_RUN, KEPT, Reading(RunCounts(completed=99)), ""))
    assert "- wrk, list of models, completed requests: the gateways count" in text
    assert "None." in text


def test_every_bad_end_is_named() -> None:
    late = replace(EQUAL, kept=replace(KEPT, status=None))
    failed = replace(EQUAL, kept=replace(KEPT, status=3))
    unread = replace(EQUAL, reading=Reading(), unread="ValueError: no\nexport")
    said = replace(EQUAL, reading=Reading(failures=("2 × `queue` full",)))
    text = page(late, failed, unread, said)
    assert f"- aiperf, concurrency sweep: ended after {AIPERF_RUN.deadline_s:.0f} s, at its deadline." in text
    assert "- aiperf, concurrency sweep: exit status 3." in text
    assert "its report could not be read: `ValueError: no export`." in text
    assert "- aiperf, concurrency sweep: `2 × 'queue' full`" in text


def test_a_tool_that_is_not_installed_is_named() -> None:
    text = page_of(OutsideOutcome((), {}, {tool.name: "no package" for tool in TOOLS}), TOOLS, MACHINE)
    assert text.count("**not installed**: no package") == len(TOOLS)
