"""The demo's summary: every claim follows from the figures, in either direction, and a breach of residency is never
missed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, TenantName
from loadgen.demo.reading import read_caveats, read_comparison, read_forwarding, residency_breaches
from loadgen.demo.report import RunReport, RunResult, report_on
from loadgen.report import MachineUse, PrefixTokens, RequestReport
from loadgen.vocabulary import RequestEnd

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
MILLISECOND_NS = 1_000_000


def record(region: RegionName, ttft_ms: int, *, served_by: RegionName | None = None) -> RequestReport:
    ttft_ns = ttft_ms * MILLISECOND_NS
    return RequestReport(
        region,
        RequestEnd.COMPLETED,
        sent_ns=0,
        ended_ns=2 * ttft_ns,
        first_token_ns=ttft_ns,
        served_by=served_by or region,
        output_tokens=10,
        tokens_in_time=10,
    )


def report(name: str, *records: RequestReport) -> RunReport:
    prefix_tokens = {region: PrefixTokens(100, 60) for region in (US, EU)}
    return report_on(RunResult(name, (US, EU), 10.0, records, prefix_tokens))


def compare(mesh_ms: int, alone_ms: int) -> str:
    mesh = report("mesh", record(US, mesh_ms), record(EU, 100))
    return read_comparison(mesh, report("alone", record(US, alone_ms), record(EU, 100)))


@pytest.mark.parametrize(
    "mesh_ms, alone_ms, words",
    [
        (100, 310, "p90 TTFT is 3.1× lower in us-east-1 (0.10 s against 0.31 s) and about the same in eu-west-1"),
        (310, 100, "p90 TTFT is 3.1× higher in us-east-1 (0.31 s against 0.10 s)"),
        (104, 100, "p90 TTFT is 4% higher in us-east-1"),
        (90, 100, "p90 TTFT is 10% lower in us-east-1"),
        (101, 100, "p90 TTFT is about the same in us-east-1"),
    ],
)
def test_latency_is_compared_as_it_was_measured(mesh_ms: int, alone_ms: int, words: str) -> None:
    assert words in compare(mesh_ms, alone_ms)


def test_throughput_and_cache_hits_are_compared_too() -> None:
    mesh = report("mesh", *[record(US, 100)] * 4, record(EU, 100))
    text = read_comparison(mesh, report("alone", *[record(US, 100)] * 2, record(EU, 100)))
    assert "Tokens/s are 2.0× higher in us-east-1, about the same in eu-west-1 and 1.7× higher in all." in text
    assert "60% of prompt tokens against 60%" in text


def test_the_busiest_region_comes_first() -> None:
    records = [record(EU, 100), record(EU, 100), record(US, 100)]
    text = read_comparison(report("mesh", *records), report("alone", *records))
    assert text.index(EU) < text.index(US)


def test_a_region_without_answers_is_not_compared() -> None:
    mesh = report("mesh", record(US, 100))
    assert "not comparable in eu-west-1." in read_comparison(mesh, report("alone", record(US, 100)))


def test_a_run_without_answers_is_not_compared_at_all() -> None:
    text = read_comparison(report("mesh"), report("alone", record(US, 100)))
    assert text == "A run without answers leaves nothing to compare."


def test_caveats_name_a_busy_machine_an_early_stop_open_requests_and_small_samples() -> None:
    quiet = report("alone", *[record(US, 100)] * 100, *[record(EU, 100)] * 99)
    busy = replace(quiet, run=replace(quiet.run, name="mesh", machine=MachineUse(0.72, 0.9), is_partial=True))
    busy = replace(busy, total=busy.total | {"unfinished": 3})
    text = read_caveats([busy, replace(quiet, run=replace(quiet.run, machine=MachineUse(0.6, 0.9)))])
    assert "72% of the machine's CPU was busy in the mesh run" in text
    assert "60% of the machine's CPU" not in text
    assert "The mesh run was stopped early." in text
    assert "3 requests of the mesh run had not ended" in text
    assert "p99 of eu-west-1 is" in text


def test_forwarding_says_from_where_to_where() -> None:
    moved = [record(US, 100, served_by=EU)] * 2
    text = read_forwarding(report("mesh", record(US, 100), *moved))
    assert text == "Forwarded requests: us-east-1 sent 2 to eu-west-1; eu-west-1 sent none."
    text = read_forwarding(report("mesh", record(US, 100)))
    assert text == "Forwarded requests: us-east-1 and eu-west-1 sent none."


def test_a_request_outside_its_policy_is_a_breach() -> None:
    def policy(region: RegionName, jurisdiction: str, *allowed: str) -> ResidencyPolicy:
        rule = PlaceRule(jurisdictions=frozenset(map(Jurisdiction, allowed)))
        return ResidencyPolicy(Place(region, Jurisdiction(jurisdiction)), process=rule, accept=rule)

    policies = {US: policy(US, "US", "US", "EU"), EU: policy(EU, "EU", "EU")}
    allowed = report("mesh", record(US, 100, served_by=EU), record(EU, 100))
    assert residency_breaches(allowed, policies, TenantName("any")) == []
    broken = report("mesh", record(EU, 100, served_by=US), record(US, 100, served_by=RegionName("nowhere")))
    assert residency_breaches(broken, policies, TenantName("any")) == [
        "1 from eu-west-1 in us-east-1",
        "1 from us-east-1 in nowhere",
    ]
