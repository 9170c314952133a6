"""Reads the reports that each tool leaves: counts, figures for the page, and failures that it names.

Pure functions of texts and documents. A report without what is read raises ValueError: a format that changed must not
become a zero.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.studies.outside.counts import RunCounts

LOG = "log.txt"
"""File in a run's folder with what the tool printed."""

_FAILURES_MAX = 40
"""Kinds of failures that are named for one run; a further line counts the others."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a tool, as the tool reports it."""

    counts: RunCounts = field(default_factory=RunCounts)
    figures: tuple[tuple[str, str], ...] = ()
    """Figures for the page, each behind its name."""
    failures: tuple[str, ...] = ()
    """Failures in the tool's own words."""
    left_out: RunCounts = field(default_factory=RunCounts)
    """Most that the gateways can have counted beyond the counts, of requests that the tool leaves out of them."""


def read_wrk(text: str) -> Reading:
    """Read what wrk prints. Requests whose answer is not 2xx or 3xx, and socket errors, have failed."""
    done, rate = _number(r"(\d+) requests in", text), _found(r"Requests/sec:\s*([\d.]+)", text)
    refused = _number_or_0(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = [int(each) for each in re.findall(r"(?:connect|read|write|timeout) (\d+)", text)]
    latencies = re.findall(r"^\s+(50|99)(?:\.0+)?%\s+([\d.]+)(us|ms|s)$", text, flags=re.MULTILINE)
    figures = [("requests/s", rate), *((f"p{share}", f"{value} {unit}") for share, value, unit in latencies)]
    counts = RunCounts(completed=done - refused, failed=refused + sum(broken))
    return Reading(counts, tuple(figures), _named({"answers that are not 2xx or 3xx": refused, "socket": sum(broken)}))


def read_h2load(text: str) -> Reading:
    """Read what h2load prints."""
    total, succeeded = _number(r"requests: (\d+) total", text), _number(r"requests: .* (\d+) succeeded", text)
    failed, timeouts = _number(r"requests: .* (\d+) failed", text), _number(r"requests: .* (\d+) timeout", text)
    figures = [("requests/s", _found(r"finished in .*?, ([\d.]+) req/s", text))]
    if times := re.search(r"time for request:\s+(\S+)\s+(\S+)\s+(\S+)", text):
        figures += [("fastest", times[1]), ("slowest", times[2]), ("mean", times[3])]
    named = {"failed": failed, "timeout": timeouts, "neither succeeded nor failed": total - succeeded - failed}
    return Reading(RunCounts(completed=succeeded, failed=failed), tuple(figures), _named(named))


def read_slowhttptest(text: str) -> Reading:
    """Read the last status that slowhttptest prints: whether the service answered others meanwhile."""
    seen = re.findall(r"service available:\s*(\S+)", re.sub(r"\x1b\[[\d;]*m", "", text))
    if not seen:
        raise ValueError("no `service available`")
    away = sum(each != "YES" for each in seen)
    return Reading(
        figures=(("status reports", str(len(seen))), ("of them with the service available", str(len(seen) - away))),
        failures=_named({"status reports in which the service was not available": away}),
    )


def read_aiperf(exports: Sequence[Mapping[str, Any]]) -> Reading:
    """Read the exports of one or several runs (`profile_export_aiperf.json`)."""
    if not exports:
        raise ValueError("no export")
    errors: Counter[str] = Counter()
    for each in (error for export in exports for error in export.get("error_summary") or ()):
        errors[_of_error(each["error_details"])] += each["count"]
    left = sum(count for error, count in errors.items() if _CANCELLED in error)
    counts = RunCounts(
        completed=sum(int(_metric(each, "request_count")) for each in exports),
        left=left,
        failed=sum(errors.values()) - left,
        prompt_tokens=sum(int(_metric(each, "total_usage_prompt_tokens")) for each in exports),
        output_tokens=sum(int(_metric(each, "total_usage_completion_tokens")) for each in exports),
    )
    figures = [
        (name, " / ".join(f"{_metric(each, metric, statistic):.{digits}f}" for each in exports))
        for name, metric, statistic, digits in _AIPERF_FIGURES
        if all(metric in each for each in exports)
    ]
    failures = _named({error: n for error, n in errors.items() if _CANCELLED not in error})
    return Reading(counts, tuple(figures), failures, _left_out_by_aiperf(exports, left))


def _left_out_by_aiperf(exports: Sequence[Mapping[str, Any]], left: int) -> RunCounts:
    """Tokens of cancelled requests, each as long at most as the longest completed one."""
    if not left:
        return RunCounts(prompt_tokens=0, output_tokens=0)
    most = (max(_metric(each, f"usage_{name}_tokens", "max") for each in exports) for name in ("prompt", "completion"))
    prompt, output = (left * int(each) for each in most)
    return RunCounts(prompt_tokens=prompt, output_tokens=output)


_CANCELLED = "RequestCancellationError"
_AIPERF_FIGURES = (
    ("requests/s", "request_throughput", "avg", 2),
    ("output tokens/s", "output_token_throughput", "avg", 0),
    ("TTFT p50, ms", "time_to_first_token", "p50", 0),
    ("TTFT p99, ms", "time_to_first_token", "p99", 0),
    ("inter-token latency p50, ms", "inter_token_latency", "p50", 1),
    ("good requests/s", "goodput", "avg", 2),
)


def _metric(export: Mapping[str, Any], name: str, statistic: str = "avg") -> float:
    try:
        return float(export[name][statistic])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no {statistic} of {name}") from error


def _of_error(details: Mapping[str, Any]) -> str:
    return f"{details.get('type') or details.get('code')}: {details.get('message', '')}"


def read_folder_of_aiperf(folder: Path) -> Reading:
    files = sorted(folder.rglob("profile_export_aiperf.json"), key=lambda each: (len(str(each)), str(each)))
    return read_aiperf([json.loads(each.read_text(encoding="utf-8")) for each in files])


def read_guidellm(report: Mapping[str, Any]) -> Reading:
    """Read the report of all benchmarks of a run (`benchmarks.json`)."""
    benchmarks = report["benchmarks"]
    if not benchmarks:
        raise ValueError("no benchmark")
    totals = [each["metrics"]["request_totals"] for each in benchmarks]
    tokens = {name: sum(_tokens_of(each["metrics"], name) for each in benchmarks) for name in ("prompt", "output")}
    counts = RunCounts(
        completed=sum(each["successful"] for each in totals),
        left=sum(each["incomplete"] for each in totals),
        failed=sum(each["errored"] for each in totals),
        prompt_tokens=tokens["prompt"],
        output_tokens=tokens["output"],
    )
    figures = [
        ("strategies", " / ".join(each["config"]["strategy"]["type_"] for each in benchmarks)),
        *((name, " / ".join(str(each["scheduler_state"][key]) for each in benchmarks))
          for name, key in (("created", "created_requests"), ("in process at the end", "processing_requests"))),
        *((name, " / ".join(f"{_successful(each, metric, *path):.{digits}f}" for each in benchmarks))
          for name, metric, path, digits in _GUIDELLM_FIGURES),
    ]  # fmt: skip
    failures = _named({"errored": sum(each["errored"] for each in totals)})
    return Reading(counts, tuple(figures), failures, _left_out_by_guidellm(benchmarks))


def _left_out_by_guidellm(benchmarks: Sequence[Mapping[str, Any]]) -> RunCounts:
    """Requests in process when their strategy ended, each as long at most as the longest of the strategy."""
    open_at_end = [each["scheduler_state"]["processing_requests"] for each in benchmarks]
    tokens = {
        name: sum(
            requests * int(each["metrics"][f"{name}_token_count"]["successful"]["max"])
            for requests, each in zip(open_at_end, benchmarks, strict=True)
        )
        for name in ("prompt", "output")
    }
    return RunCounts(sum(open_at_end), prompt_tokens=tokens["prompt"], output_tokens=tokens["output"])


_GUIDELLM_FIGURES: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("requests/s", "requests_per_second", ("mean",), 2),
    ("output tokens/s", "output_tokens_per_second", ("mean",), 0),
    ("TTFT p50, ms", "time_to_first_token_ms", ("percentiles", "p50"), 0),
    ("TTFT p99, ms", "time_to_first_token_ms", ("percentiles", "p99"), 0),
    ("inter-token latency p50, ms", "inter_token_latency_ms", ("percentiles", "p50"), 1),
)


def _tokens_of(metrics: Mapping[str, Any], name: str) -> int:
    return sum(int(metrics[f"{name}_token_count"][end]["total_sum"]) for end in ("successful", "incomplete"))


def _successful(benchmark: Mapping[str, Any], metric: str, *path: str) -> float:
    found: Any = benchmark["metrics"][metric]["successful"]
    for key in path:
        found = found[key]
    return float(found)


def read_folder_of_guidellm(folder: Path) -> Reading:
    return read_guidellm(json.loads((folder / "benchmarks.json").read_text(encoding="utf-8")))


def read_schemathesis(report: Mapping[str, Any], log: str) -> Reading:
    """Read the report of one run. Its failures are named with the operations on which they were found, and so are its
    errors, of which only the log has more than a title."""
    operations, cases = report["operations"], report["test_cases"]
    figures = (
        ("operations tested", f"{operations['tested']} of {operations['total']}"),
        ("requests generated", f"{cases['generated']:,}"),
        ("of them with failures", str(cases["with_failures"])),
        ("different failures", str(cases["unique_failures"])),
    )
    failures = [f"{each['title']} ({each['count']}): {', '.join(each['operations'])}" for each in report["failures"]]
    for each in report["errors"]:
        found = re.findall(rf"^_+ (\w+ /\S*) _+\n{re.escape(each['title'])}\n\n(.+)$", log, re.MULTILINE)
        named = "; ".join(f"{operation}: {reason}" for operation, reason in found)
        failures.append(f"{each['title']} ({each['count']}): {named or 'the log has no more of it'}")
    return Reading(figures=figures, failures=tuple(failures))


def read_folder_of_schemathesis(folder: Path) -> Reading:
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return read_schemathesis(report, (folder / LOG).read_text(encoding="utf-8", errors="replace"))


def read_vllm(report: Mapping[str, Any]) -> Reading:
    """Read the result of one `vllm bench serve`, which leaves out the requests by which it counts prompts' tokens."""
    prompts = int(report["num_prompts"])
    counts = RunCounts(
        completed=int(report["completed"]),
        failed=int(report["failed"]),
        prompt_tokens=int(report["total_input_tokens"]),
        output_tokens=int(report["total_output_tokens"]),
    )
    figures = tuple((name, f"{report[key]:.{digits}f}") for name, key, digits in _VLLM_FIGURES)
    return Reading(
        counts, figures, _named({"failed": int(report["failed"])}), left_out=RunCounts(completed=prompts + 1)
    )


_VLLM_FIGURES = (
    ("requests/s", "request_throughput", 2),
    ("output tokens/s", "output_throughput", 0),
    ("TTFT p50, ms", "median_ttft_ms", 0),
    ("TTFT p99, ms", "p99_ttft_ms", 0),
    ("inter-token latency p50, ms", "median_itl_ms", 1),
)


def read_folder_of_vllm(folder: Path) -> Reading:
    return read_vllm(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def read_compatcanary(report: Mapping[str, Any]) -> Reading:
    """Read the report of one scan."""
    summary = report["summary"]
    figures = (("score", f"{report['score']} of 100"), *_by_status(summary, ("passes", "warnings", "failures")))
    failures = [
        _observed(each, each["name"], each["summary"]) for each in report["results"] if each["status"] != "pass"
    ]
    return Reading(figures=figures, failures=tuple(failures))


def read_folder_of_compatcanary(folder: Path) -> Reading:
    return read_compatcanary(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def read_trustedrouter(report: Mapping[str, Any]) -> Reading:
    """Read the report of one run. What it skips is named beside what fails."""
    checks = report["checks"]
    failures = [
        _observed(each, each["id"], str(each["measured"].get("reason") or each["assertion"]))
        for each in checks
        if each["status"] != "pass"
    ]
    return Reading(
        figures=_by_status(report["summary"], ("passed", "warned", "failed", "skipped")), failures=tuple(failures)
    )


def read_folder_of_trustedrouter(folder: Path) -> Reading:
    return read_trustedrouter(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def read_testssl(findings: Sequence[Mapping[str, Any]]) -> Reading:
    """Read the findings of one run. All that are worse than good or for information alone are failures."""
    severities = Counter(each["severity"] for each in findings)
    told = {each["id"]: each["finding"] for each in findings}
    figures = [(name, told[name]) for name in _TLS_VERSIONS]
    figures += [(f"findings, {name}", str(number)) for name, number in sorted(severities.items())]
    failures = [
        _observed(each, each["id"], each["finding"], "severity") for each in findings if each["severity"] not in _FINE
    ]
    return Reading(figures=tuple(figures), failures=tuple(failures))


_TLS_VERSIONS = ("SSLv2", "SSLv3", "TLS1", "TLS1_1", "TLS1_2", "TLS1_3")
_FINE = ("OK", "INFO", "DEBUG")


def read_folder_of_testssl(folder: Path) -> Reading:
    return read_testssl(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def _by_status(summary: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(summary[name])) for name in names)


def _observed(each: Mapping[str, Any], name: str, text: str, kind: str = "status") -> str:
    return f"{each[kind]}: {name}: {text}"


def _found(pattern: str, text: str) -> str:
    if match := re.search(pattern, text):
        return match[1]
    raise ValueError(f"nothing matches {pattern!r}")


def _number(pattern: str, text: str) -> int:
    return int(_found(pattern, text))


def _number_or_0(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _named(counts: Mapping[str, int]) -> tuple[str, ...]:
    named = [f"{count} × {name}" for name, count in counts.items() if count]
    more = len(named) - _FAILURES_MAX
    return (*named[:_FAILURES_MAX], *([f"{more} further kinds of failures, not named here"] if more > 0 else []))
