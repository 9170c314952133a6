"""The arithmetic of the report, and that no failure is lost on the way to the table."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from gateway.core.vocabulary import RegionName
from loadgen.demo.report import RunResult, as_document, report_on, table_of
from loadgen.report import MachineUse, PrefixTokens, RequestReport
from loadgen.vocabulary import RequestEnd

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
SECOND_NS = 1_000_000_000

DONE = RequestReport(
    US,
    RequestEnd.COMPLETED,
    sent_ns=SECOND_NS,
    ended_ns=4 * SECOND_NS,
    first_token_ns=2 * SECOND_NS,
    served_by=US,
    output_tokens=50,
    tokens_in_time=40,
)
REFUSED = replace(DONE, end=RequestEnd.FAILED, first_token_ns=None, served_by=None, tokens_in_time=0, detail="HTTP 503")
CUT_OFF = replace(DONE, end=RequestEnd.UNFINISHED, tokens_in_time=10)


def run_of(*records: RequestReport, **prefix_tokens: PrefixTokens) -> RunResult:
    named = {RegionName(name.replace("_", "-")): tokens for name, tokens in prefix_tokens.items()}
    return RunResult("mesh", (US, EU), 10.0, records, named)


def printed(renderable: object, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_region_counts_its_own_clients_only() -> None:
    report = report_on(run_of(DONE, DONE, replace(DONE, client_region=EU, served_by=EU)))
    assert (report.regions[US]["requests"], report.regions[EU]["requests"], report.total["requests"]) == (2, 1, 3)
    assert (report.regions[US]["tokens_per_s"], report.total["tokens_per_s"]) == (8.0, 12.0)


def test_latency_is_taken_where_there_was_one() -> None:
    figures = report_on(run_of(DONE, REFUSED, CUT_OFF)).regions[US]
    assert [figures[name] for name in ("requests", "completed", "failed", "unfinished")] == [3, 1, 1, 1]
    assert set(figures["ttft_ms"].values()) == {1000.0}
    assert set(figures["duration_ms"].values()) == {3000.0}


def test_requests_and_time_per_token_count_what_was_completed() -> None:
    late = replace(DONE, ended_ns=11 * SECOND_NS, output_tokens=1)
    figures = report_on(run_of(DONE, DONE, late, REFUSED)).regions[US]
    assert figures["requests_per_s"] == 0.2, "the late one ended after the load"
    assert set(figures["tpot_ms"].values()) == {40.816}, "2 s for 49 tokens"


def test_shares_are_of_answered_requests() -> None:
    report = report_on(run_of(DONE, DONE, DONE, replace(DONE, served_by=EU), REFUSED))
    assert (report.regions[US]["local_share"], report.regions[US]["forwarded_share"]) == (0.75, 0.25)
    assert (report.regions[EU]["local_share"], report.regions[EU]["forwarded_share"]) == (None, None)
    assert report.answered == {(US, US): 3, (US, EU): 1}


def test_prefix_hits_belong_to_the_engines_region_and_add_up_by_tokens() -> None:
    report = report_on(run_of(DONE, us_east_1=PrefixTokens(100, 50), eu_west_1=PrefixTokens(300, 30)))
    assert report.regions[US]["prefix_hit_rate"] == 0.5
    assert report.regions[EU]["prefix_hit_rate"] == 0.1
    assert report.total["prefix_hit_rate"] == 0.2
    assert report_on(run_of(DONE)).total["prefix_hit_rate"] is None


def test_a_run_without_requests_is_a_report_of_nothing() -> None:
    report = report_on(replace(run_of(), load_s=0.0))
    assert report.total["tokens_per_s"] == 0.0
    assert report.total["ttft_ms"] is None
    assert "–" in printed(table_of([report]))


def test_every_failure_is_named_and_counted() -> None:
    report = report_on(run_of(DONE, REFUSED, REFUSED, replace(REFUSED, detail="error event: died")))
    assert report.failures == {"HTTP 503": 2, "error event: died": 1}


def test_the_document_is_json_with_the_same_figures() -> None:
    run = replace(run_of(DONE, replace(DONE, served_by=EU)), machine=MachineUse(0.25, 0.5, 0.125), is_partial=True)
    document = json.loads(json.dumps(as_document(report_on(run))))
    assert document["regions"][US]["ttft_ms"] == dict.fromkeys(
        ("p10", "p25", "p50", "p75", "p90", "p99", "mean"), 1000.0
    )
    assert document["regions"][US]["forwarded_share"] == 0.5
    assert document["regions"][EU]["ttft_ms"] is None
    assert {"client_region": US, "engine_region": EU, "requests": 1} in document["answered"]
    assert document["machine_cpu"] == {"mean_share": 0.25, "peak_share": 0.5, "own_share": 0.125}
    assert document["partial"] is True


def test_runs_stand_side_by_side_and_fit_an_ordinary_terminal() -> None:
    mesh = report_on(run_of(DONE, replace(DONE, served_by=EU)))
    alone = report_on(replace(run_of(DONE), name="alone"))
    text = printed(table_of([mesh, alone]))
    assert "…" not in text
    heading = next(line for line in text.splitlines() if "mesh" in line)
    assert heading.split() == ["mesh", "alone"] * 3
    forwarded = next(line for line in text.splitlines() if line.startswith("forwarded"))
    assert forwarded.split() == ["forwarded", "50%", "0%", "–", "–", "50%", "0%"]
