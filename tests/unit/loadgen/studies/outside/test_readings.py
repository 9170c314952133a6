"""Reports of tools as they were recorded from real runs, shortened, and that a changed format is no zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.readings import (
    Reading,
    read_aiperf,
    read_compatcanary,
    read_guidellm,
    read_h2load,
    read_schemathesis,
    read_slowhttptest,
    read_testssl,
    read_trustedrouter,
    read_vllm,
    read_wrk,
)

WRK = """Running 10s test @ http://127.77.1.1:25956/v1/models
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    60.17ms   36.48ms 528.83ms   87.44%
    Req/Sec   275.72    105.14   580.00     63.54%
  Latency Distribution
     50%   55.70ms
     75%   71.86ms
     90%   90.73ms
     99%  199.62ms
  2737 requests in 10.01s, 0.96MB read
Requests/sec:    273.48
Transfer/sec:     97.75KB
"""
H2LOAD = """finished in 34.26s, 11.67 req/s, 12.93KB/s
requests: 400 total, 400 started, 400 done, 400 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 400 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 443.14KB (453780) total, 96.66KB (98980) headers (space savings 0.00%), 328.13KB (336000) data
                     min         max         mean         sd        +/- sd
time for request:      1.03s       2.47s       1.33s    188.10ms    75.00%
time for connect:      126us     26.87ms     24.70ms      6.56ms    93.75%
"""
SLOW = """\x1b[0mSun Nov 29 20:46:45 2026:\x1b[1;32m
slow HTTP test status on \x1b[0;32m10\x1b[1;32mth second:

\x1b[1;32minitializing:\x1b[1;32m        0
\x1b[1;32mpending:     \x1b[1;32m        0
\x1b[1;32mconnected:   \x1b[1;32m        300
\x1b[1;32merror:       \x1b[1;32m        0
\x1b[1;32mclosed:      \x1b[1;32m        0
\x1b[1;32mservice available:\x1b[1;32m   \x1b[1;32mYES\x1b[0m
"""
AIPERF: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 1.0150739880215034},
    "request_count": {"unit": "requests", "avg": 13.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 48.72355142503217},
    "total_usage_prompt_tokens": {"unit": "tokens", "avg": 5317.0},
    "total_usage_completion_tokens": {"unit": "tokens", "avg": 624.0},
    "usage_prompt_tokens": {"unit": "tokens", "avg": 409.0, "max": 410.0},
    "usage_completion_tokens": {"unit": "tokens", "avg": 48.0, "max": 50.0},
    "error_summary": [
        {
            "error_details": {
                "code": 499,
                "type": "RequestCancellationError",
                "message": "Request cancelled 0.500s after being sent",
            },
            "count": 7,
        },
        {"error_details": {"code": 503, "type": "Service Unavailable", "message": "queue full"}, "count": 2},
    ],
    "time_to_first_token": {"unit": "ms", "avg": 413.7, "p50": 395.15306499999997, "p99": 664.9096774799999},
}
SCHEMATHESIS: dict[str, Any] = {
    "operations": {"total": 29, "selected": 29, "tested": 29, "errored": 0, "skipped": 0, "skip_reasons": []},
    "test_cases": {
        "generated": 1856,
        "with_failures": 14,
        "unique_failures": 14,
        "without_checks": 0,
        "errored": 0,
    },
    "failures": [
        {
            "type": "RejectedPositiveData",
            "code": "ST202",
            "title": "Schema-valid request rejected",
            "severity": "medium",
            "count": 2,
            "operations": ["POST /rerank", "POST /v1/files"],
        }
    ],
    "errors": [],
}


def test_wrk() -> None:
    assert read_wrk(WRK) == Reading(
        RunCounts(completed=2737, failed=0), (("requests/s", "273.48"), ("p50", "55.70 ms"), ("p99", "199.62 ms"))
    )


def test_wrk_names_refused_and_broken_requests() -> None:
    told = WRK.replace(
        "Requests/sec",
        "  Socket errors: connect 0, read 3, write 0, timeout 1\n  Non-2xx or 3xx responses: 17\nRequests/sec",
    )
    reading = read_wrk(told)
    assert reading.counts == RunCounts(completed=2720, failed=21)
    assert reading.failures == ("17 × answers that are not 2xx or 3xx", "4 × socket")


def test_h2load() -> None:
    reading = read_h2load(H2LOAD)
    assert reading.counts == RunCounts(completed=400, failed=0)
    assert reading.figures == (
        ("requests/s", "11.67"),
        ("fastest", "1.03s"),
        ("slowest", "2.47s"),
        ("mean", "1.33s"),
    )
    assert reading.failures == ()


def test_h2load_names_failed_requests() -> None:
    reading = read_h2load(H2LOAD.replace("400 succeeded, 0 failed", "398 succeeded, 2 failed"))
    assert reading.counts == RunCounts(completed=398, failed=2)
    assert reading.failures == ("2 × failed",)


def test_h2load_names_requests_that_were_never_sent() -> None:
    told = "400 total, 384 started, 384 done, 384 succeeded, 0 failed"
    reading = read_h2load(H2LOAD.replace("400 total, 400 started, 400 done, 400 succeeded, 0 failed", told))
    assert reading.failures == ("16 × neither succeeded nor failed",)


def test_h2load_names_a_request_of_a_lost_connection_once() -> None:
    told = "400 total, 399 started, 398 done, 398 succeeded, 2 failed"
    reading = read_h2load(H2LOAD.replace("400 total, 400 started, 400 done, 400 succeeded, 0 failed", told))
    assert reading.failures == ("2 × failed",)


def test_slowhttptest_names_reports_without_the_service() -> None:
    reading = read_slowhttptest(SLOW + SLOW.replace("YES", "NO"))
    assert reading.figures == (("status reports", "2"), ("of them with the service available", "1"))
    assert reading.failures == ("1 × status reports in which the service was not available",)


def test_aiperf_counts_the_runs_of_a_sweep_together() -> None:
    once, twice = read_aiperf([AIPERF]), read_aiperf([AIPERF, AIPERF])
    assert once.counts == RunCounts(completed=13, left=7, failed=2, prompt_tokens=5317, output_tokens=624)
    assert twice.counts == RunCounts(completed=26, left=14, failed=4, prompt_tokens=10_634, output_tokens=1248)
    assert ("TTFT p50, ms", "395 / 395") in twice.figures
    assert once.failures == ("2 × Service Unavailable: queue full",)
    assert once.left_out == RunCounts(prompt_tokens=7 * 410, output_tokens=7 * 50)


def test_kinds_of_failures_beyond_the_limit_are_counted() -> None:
    errors = [{"error_details": {"type": f"kind {number}"}, "count": 1} for number in range(43)]
    failures = read_aiperf([{**AIPERF, "error_summary": errors}]).failures
    assert len(failures) == 41
    assert failures[-1] == "3 further kinds of failures, not named here"


GUIDELLM: dict[str, Any] = {
    "scheduler_state": {"created_requests": 24, "processing_requests": 0},
    "config": {"strategy": {"type_": "synchronous", "worker_count": 1, "max_concurrency": 1}},
    "metrics": {
        "request_totals": {"successful": 24, "errored": 0, "incomplete": 0, "total": 24},
        **{
            name: {
                "successful": {"total_sum": total, "max": total / 24},
                "incomplete": {"total_sum": 0.0},
                "errored": {"total_sum": 0.0},
            }
            for name, total in (("prompt_token_count", 9816.0), ("output_token_count", 384.0))
        },
        **{
            name: {"successful": {"mean": mean, "percentiles": {"p50": mean, "p99": 2 * mean}}}
            for name, mean in (
                ("requests_per_second", 1.04),
                ("output_tokens_per_second", 16.6),
                ("time_to_first_token_ms", 158.4),
                ("inter_token_latency_ms", 53.6),
            )
        },
    },
}


def test_guidellm_counts_all_strategies_together() -> None:
    reading = read_guidellm({"benchmarks": [GUIDELLM, GUIDELLM]})
    assert reading.counts == RunCounts(completed=48, left=0, failed=0, prompt_tokens=19_632, output_tokens=768)
    assert reading.figures[0] == ("strategies", "synchronous / synchronous")
    assert reading.figures[2:4] == (("in process at the end", "0 / 0"), ("requests/s", "1.04 / 1.04"))
    assert reading.failures == ()
    assert reading.left_out == RunCounts(0, prompt_tokens=0, output_tokens=0)


def test_guidellm_leaves_out_what_is_in_process() -> None:
    cut = {**GUIDELLM, "scheduler_state": {"created_requests": 24, "processing_requests": 2}}
    left_out = read_guidellm({"benchmarks": [GUIDELLM, cut]}).left_out
    assert left_out == RunCounts(2, prompt_tokens=2 * 409, output_tokens=2 * 16)


def test_schemathesis() -> None:
    reading = read_schemathesis(SCHEMATHESIS, "")
    assert reading.counts == RunCounts()
    assert reading.figures[0] == ("operations tested", "29 of 29")
    assert reading.failures == ("Schema-valid request rejected (2): POST /rerank, POST /v1/files",)


def test_errors_of_schemathesis_have_their_reasons_from_its_log() -> None:
    report = {**SCHEMATHESIS, "errors": [{"title": "Network Error", "count": 2}]}
    log = f"""=== ERRORS ===
{"_" * 30} POST /v1/responses {"_" * 30}
Network Error

Read timed out after 10 seconds

Reproduce with:
"""
    assert read_schemathesis(report, log).failures[1:] == (
        "Network Error (2): POST /v1/responses: Read timed out after 10 seconds",
    )
    assert read_schemathesis(report, "").failures[1:] == ("Network Error (2): the log has no more of it",)


@pytest.mark.parametrize("read", [read_wrk, read_h2load, read_slowhttptest])
def test_a_text_of_another_format_is_not_read(read: Callable[[str], Reading]) -> None:
    with pytest.raises(ValueError, match="no"):
        read("usage: --help")


def test_an_export_without_its_counts_is_not_read() -> None:
    with pytest.raises(ValueError, match="no export"):
        read_aiperf([])
    with pytest.raises(ValueError, match="no avg of request_count"):
        read_aiperf([{**AIPERF, "request_count": None}])
    with pytest.raises(ValueError, match="no benchmark"):
        read_guidellm({"benchmarks": []})


def test_vllm_leaves_out_the_requests_that_count_tokens() -> None:
    figures = {"request_throughput": 5.6, "output_throughput": 134.5, "median_ttft_ms": 180.2, "p99_ttft_ms": 404.7}
    counts = {
        "num_prompts": 120,
        "completed": 118,
        "failed": 2,
        "total_input_tokens": 39305,
        "total_output_tokens": 2832,
    }
    reading = read_vllm({**counts, **figures, "median_itl_ms": 55.8})
    assert reading.counts == RunCounts(118, None, 2, 39305, 2832)
    assert reading.left_out == RunCounts(completed=121)
    assert ("TTFT p99, ms", "405") in reading.figures
    assert reading.failures == ("2 × failed",)


def test_compatcanary_names_probes_that_do_not_pass() -> None:
    probes = [
        {"name": "Model discovery", "status": "pass", "summary": "Discovered 1 models"},
        {"name": "Forced tool call", "status": "fail", "summary": "Expected a function tool call"},
    ]
    reading = read_compatcanary(
        {"score": 82, "summary": {"passes": 6, "warnings": 0, "failures": 1}, "results": probes}
    )
    assert reading.figures == (("score", "82 of 100"), ("passes", "6"), ("warnings", "0"), ("failures", "1"))
    assert reading.failures == ("fail: Forced tool call: Expected a function tool call",)


def test_trustedrouter_names_checks_that_fail_or_are_skipped() -> None:
    checks = [
        {"id": "chat.usage", "status": "pass", "assertion": "usage adds up", "measured": {}},
        {"id": "chat.pong", "status": "fail", "assertion": "an answer is matched", "measured": {"reason": None}},
        {"id": "tools", "status": "skip", "assertion": "calls", "measured": {"reason": "no calls"}},
    ]
    reading = read_trustedrouter({"summary": {"passed": 1, "warned": 0, "failed": 1, "skipped": 1}, "checks": checks})
    assert reading.figures == (("passed", "1"), ("warned", "0"), ("failed", "1"), ("skipped", "1"))
    assert reading.failures == ("fail: chat.pong: an answer is matched", "skip: tools: no calls")


def test_testssl_names_findings_that_are_not_fine() -> None:
    findings = [
        *({"id": each, "severity": "INFO", "finding": "not offered"} for each in ("SSLv2", "SSLv3", "TLS1", "TLS1_1")),
        {"id": "TLS1_2", "severity": "OK", "finding": "offered"},
        {"id": "TLS1_3", "severity": "OK", "finding": "offered"},
        {"id": "HSTS", "severity": "LOW", "finding": "not offered"},
    ]
    reading = read_testssl(findings)
    assert reading.figures[3:7] == (
        ("TLS1_1", "not offered"), ("TLS1_2", "offered"), ("TLS1_3", "offered"), ("findings, INFO", "4"),
    )  # fmt: skip
    assert reading.failures == ("LOW: HSTS: not offered",)
    with pytest.raises(KeyError, match="SSLv2"):
        read_testssl(findings[1:])
