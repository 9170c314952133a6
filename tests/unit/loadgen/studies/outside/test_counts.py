"""RunCounts of metrics pages, and their comparison with those of a tool."""

from __future__ import annotations

from loadgen.studies.outside.counts import (
    Allowance,
    Compared,
    RunCounts,
    compared,
    counts_in,
    missing_in,
    since,
    unexplained,
    value_in,
)

US = """# HELP nightside_requests_total Client requests that ended.
# TYPE nightside_requests_total counter
nightside_requests_total{model="m",outcome="completed"} 7.0
nightside_requests_total{model="m",outcome="abandoned"} 2.0
nightside_requests_total{model="m",outcome="queue_timeout"} 1.0
# TYPE nightside_refusals_total counter
nightside_refusals_total{reason="invalid_json",tenant=""} 3.0
nightside_refusals_total{reason="not_found",tenant=""} 1.0
# TYPE nightside_prompt_tokens_total counter
nightside_prompt_tokens_total{model="m",ran="local",counted="usage"} 100.0
nightside_prompt_tokens_total{model="m",ran="forward",counted="usage"} 50.0
# TYPE nightside_output_tokens_total counter
nightside_output_tokens_total{model="m",ran="local",counted="usage"} 30.0
# TYPE nightside_forwards_output_tokens_total counter
nightside_forwards_output_tokens_total{model="m",counted="usage"} 99.0
# TYPE process_open_fds gauge
process_open_fds 20.0
"""
EU = """# TYPE nightside_requests_total counter
nightside_requests_total{model="m",outcome="completed"} 3.0
# TYPE process_open_fds gauge
process_open_fds 22.0
"""


def test_counts_are_of_all_gateways_and_of_no_forward_twice() -> None:
    assert counts_in([US, EU]) == RunCounts(10, 2, failed=5, prompt_tokens=150, output_tokens=30, not_found=1)
    assert counts_in([]) == RunCounts(0, 0, 0, 0, 0, 0)


def test_a_gauge_is_summed() -> None:
    assert value_in([US, EU], "process_open_fds") == 42


def test_counts_between_two_readings() -> None:
    assert since(counts_in([EU]), counts_in([US, EU])) == RunCounts(7, 2, 5, 150, 30, 1)


def test_a_page_that_lacks_what_is_read_says_so() -> None:
    assert missing_in(US) == ["nightside_requests_open"]
    assert missing_in(f"{US}# TYPE nightside_requests_open gauge\nnightside_requests_open 0\n") == []
    assert missing_in("# TYPE nightside_requests_total counter\n")[:2] == [
        "nightside_refusals_total",
        "nightside_prompt_tokens_total",
    ]


def test_only_reported_counts_are_compared() -> None:
    pairs = compared(RunCounts(completed=7, failed=4), RunCounts(7, 2, 5, 150, 30))
    assert pairs == [Compared("completed", 7, 7), Compared("failed", 4, 5)]
    assert [each.is_equal for each in pairs] == [True, False]


def test_a_difference_without_a_reason_is_named() -> None:
    pairs = [Compared("completed", 7, 7), Compared("failed", 4, 5), Compared("left", 0, 1)]
    allowed = {"left": Allowance(0, 1, "the tool counts it as failed"), "completed": Allowance(1, 1, "is equal")}
    assert unexplained(pairs, allowed) == [pairs[1]]


def test_a_reason_accounts_for_no_other_difference() -> None:
    pairs = [Compared("failed", 0, difference) for difference in (1, 2, 3, 4)] + [Compared("failed", 1, 0)]
    assert unexplained(pairs, {"failed": Allowance(2, 3, "known")}) == [pairs[0], *pairs[3:]]
