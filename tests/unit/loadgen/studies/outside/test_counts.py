"""RunCounts of metrics pages, and their comparison with those of a tool."""

from __future__ import annotations

from loadgen.studies.outside.counts import Compared, RunCounts, compared, counts_in, since, unexplained, value_in

US = """# HELP nightside_requests_total Client requests that ended.
# TYPE nightside_requests_total counter
nightside_requests_total{model="m",outcome="completed"} 7.0
nightside_requests_total{model="m",outcome="abandoned"} 2.0
nightside_requests_total{model="m",outcome="queue_timeout"} 1.0
# TYPE nightside_refusals_total counter
nightside_refusals_total{reason="invalid_json",tenant=""} 4.0
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
    assert counts_in([US, EU]) == RunCounts(completed=10, left=2, failed=5, prompt_tokens=150, output_tokens=30)
    assert counts_in([]) == RunCounts(0, 0, 0, 0, 0)


def test_a_gauge_is_summed() -> None:
    assert value_in([US, EU], "process_open_fds") == 42


def test_counts_between_two_readings() -> None:
    assert since(counts_in([EU]), counts_in([US, EU])) == RunCounts(7, 2, 5, 150, 30)


def test_only_reported_counts_are_compared() -> None:
    pairs = compared(RunCounts(completed=7, failed=4), RunCounts(7, 2, 5, 150, 30))
    assert pairs == [Compared("completed", 7, 7), Compared("failed", 4, 5)]
    assert [each.is_equal for each in pairs] == [True, False]


def test_a_difference_without_a_reason_is_named() -> None:
    pairs = [Compared("completed", 7, 7), Compared("failed", 4, 5), Compared("left", 0, 1)]
    assert unexplained(pairs, {"left": "the tool counts it as failed", "completed": "is equal"}) == [pairs[1]]
