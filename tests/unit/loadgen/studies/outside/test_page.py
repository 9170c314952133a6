"""Statements of the page: counts that differ, tools that failed, and tools that are not installed."""

from __future__ import annotations

from dataclasses import replace

from loadgen.pages.markdown import NOTHING
from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.outcomes import KeptRun, OutsideOutcome, OutsideSetup, RunOutcome, SoakOutcome
from loadgen.studies.outside.page import page_of
from loadgen.studies.outside.readings import Reading
from loadgen.studies.outside.soak import KeptSoak, SoakError, SoakKill
from loadgen.studies.outside.tools import RUNS, SCHEMATHESIS, TOOLS, WRK, ToolRun

MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "Python", "core": "plain Python"}
AIPERF_RUN = RUNS[0]
WRK_RUN = next(each for each in RUNS if each.tool is WRK)
SCHEMATHESIS_RUN = next(each for each in RUNS if each.tool is SCHEMATHESIS)
KEPT = KeptRun(0, 12.4, 1.5, RunCounts(10, 2, 0, 4000, 480), (40, 41))
EQUAL = RunOutcome(AIPERF_RUN, KEPT, Reading(RunCounts(10, 2, 0, 4000, 480), (("requests/s", "5"),)), "")
SETUP = OutsideSetup({tool.name: "1.2" for tool in TOOLS}, MACHINE)
SECOND = 1_000_000_000
SOAK = KeptSoak(
    3600.0, "1.0", MACHINE, "aiperf profile", 0, 50 * SECOND, 3700.0,
    [SoakKill("gw-eu", 60 * SECOND, 61 * SECOND, 70 * SECOND, 80 * SECOND, address=1)], [], [1.0, 2.0],
    {"gw-us": {"completed": 80, "not_found": 2}, "gw-eu": {"completed": 8, "abandoned": 4, "upstream_failed": 1}},
    ["gw-us", "gw-eu"],
)  # fmt: skip


def page(*runs: RunOutcome, missing: tuple[ToolRun, ...] = ()) -> str:
    return page_of(OutsideOutcome(runs, missing, SETUP, {}), TOOLS)


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
    assert "- aiperf, concurrency sweep: completed requests differ by −2, and the reason is not known." in text


def test_a_difference_beyond_its_reason_is_a_failure_and_not_explained() -> None:
    counted = replace(KEPT.gateways, failed=5, not_found=3)
    text = page(replace(EQUAL, kept=replace(KEPT, gateways=counted)))
    assert "failed requests differ by +5, and the reason is not known: what is known allows +3." in text
    assert "404" not in text


def test_a_difference_with_a_reason_is_explained_and_no_failure() -> None:
    kept = replace(KEPT, gateways=RunCounts(0, 0, 0, 0, 0, 0))
    text = page(EQUAL, RunOutcome(WRK_RUN, kept, Reading(RunCounts(completed=99, failed=0)), ""))
    assert "- wrk, list of models, completed requests: the gateways count" in text
    assert "None." in text
    assert "5 of 5 counts are equal" in text


def test_runs_that_did_not_happen_are_named() -> None:
    assert "## Failures\n\n- wrk, list of models: it did not run.\n" in page(EQUAL, missing=(WRK_RUN,))


def test_a_status_has_its_meaning_beside_a_report_alone() -> None:
    found = RunOutcome(SCHEMATHESIS_RUN, replace(KEPT, status=1), Reading(failures=("a rejected request",)), "")
    assert "every operation: exit status 1: it found the failures that follow." in page(found)
    assert "every operation: exit status 1." in page(replace(found, unread="ValueError: nothing"))
    assert "every operation: exit status 2." in page(replace(found, kept=replace(KEPT, status=2)))


def test_every_bad_end_is_named() -> None:
    late = replace(EQUAL, kept=replace(KEPT, status=None))
    failed = replace(EQUAL, kept=replace(KEPT, status=3))
    unread = replace(EQUAL, reading=Reading(), unread="ValueError: no\nexport")
    said = replace(EQUAL, reading=Reading(failures=("2 × `queue` full", "long " * 300)))
    text = page(late, failed, unread, said)
    assert f"- aiperf, concurrency sweep: ended after {AIPERF_RUN.deadline_s:.0f} s, at its deadline." in text
    assert "- aiperf, concurrency sweep: exit status 3." in text
    assert "its report could not be read: `ValueError: no export`." in text
    assert "- aiperf, concurrency sweep: `2 × 'queue' full`\n" in text
    assert "long ` (cut)\n" in text


def test_a_tool_that_is_not_installed_is_named() -> None:
    nothing = OutsideOutcome((), RUNS, OutsideSetup({}, MACHINE), {tool.name: "no package" for tool in TOOLS})
    assert page_of(nothing, TOOLS).count("**not run**: `no package`") == len(TOOLS)


def test_a_soak_has_a_section_that_names_every_error_without_a_reason() -> None:
    broken = SoakError(60 * SECOND, 61 * SECOND, 0, "ServerDisconnectedError: `gone`")
    errors = [broken, replace(broken, address=1), replace(broken, address=None)]
    text = page_of(OutsideOutcome((EQUAL,), (), SETUP, {}, SoakOutcome(SOAK, errors, RunCounts(90, 5, 3))), TOOLS)
    assert "## A soak of 60 minutes" in text
    assert "| completed | 90 | 88 |\n| left by AIPerf | 5 | 4 |\n| errors | 3 | 3 |\n" in text
    assert "Their errors: 2 × `not_found`, 1 × `upstream_failed`." in text
    assert "| gw-eu | 1 | 10.0–10.0 | 20.0–20.0 | 0 |" in text
    assert "| in flight at the gateway when it was killed | 1 |" in text
    assert text.count("- not explained: ") == 2
    assert "- not explained: an unknown address, 10.0 to 11.0 s" in text
    assert "- not explained: gw-us, 10.0 to 11.0 s: `ServerDisconnectedError: 'gone'`" in text
    assert "- **not met**: a kill explains each error (3 errors, 2 without one)" in text


def test_a_soak_that_never_began_has_a_section_with_its_exit_status() -> None:
    idle = replace(SOAK, status=2, began_ns=0, took_s=3.0, kills=[], loads=[], ends={})
    text = page_of(
        OutsideOutcome((), (), SETUP, {}, SoakOutcome(idle, [], RunCounts(), "ValueError: no `export`")), TOOLS
    )
    assert "**AIPerf's report could not be read**: `ValueError: no 'export'`. Its exit status was 2, after 3 s." in text
    assert "- **not met**: AIPerf's report could be read\n" in text
    assert "| errors |" not in text
    late = replace(idle, status=None)
    text = page_of(OutsideOutcome((), (), SETUP, {}, SoakOutcome(late, [], RunCounts(), "no export")), TOOLS)
    assert "`no export`. It was ended at its deadline, after 3 s." in text


def test_a_process_that_was_not_ready_has_no_time_of_that() -> None:
    slow = replace(SOAK, kills=[replace(SOAK.kills[0], whole_ns=None, is_ready=False)])
    text = page_of(OutsideOutcome((), (), SETUP, {}, SoakOutcome(slow, [], RunCounts(90, 5, 0))), TOOLS)
    assert f"| gw-eu | 1 | {NOTHING} | {NOTHING} | 1 |" in text


def test_a_page_without_a_soak_says_so() -> None:
    text = page(EQUAL)
    assert "## A soak" not in text
    assert "- No soak is kept" in text
