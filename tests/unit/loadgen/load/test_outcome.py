"""A live run's figures have the shape of a simulated one's, so that one report shows both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.core.vocabulary import RegionName
from loadgen.load.outcome import LiveRun, live_document, live_figures
from loadgen.pages.runs import page_of
from loadgen.report import MachineUse, RequestReport
from loadgen.simulator.results import document_of, figures_of
from loadgen.simulator.world import World
from loadgen.vocabulary import RequestEnd
from tests.support.scenarios import small_scenario

US, EU = RegionName("us"), RegionName("eu")
SECOND = 1_000_000_000
SCENARIO = small_scenario(
    duration="4s",
    warm_up="2s",
    clients=[
        {"region": "us", "workload": "chat", "clients": 2},
        {"region": "eu", "workload": "chat", "clients": 1},
    ],
)
DONE = RequestReport(
    US,
    RequestEnd.COMPLETED,
    sent_ns=3 * SECOND,
    ended_ns=3 * SECOND + 500_000_000,
    first_token_ns=3 * SECOND + 100_000_000,
    served_by=EU,
    output_tokens=5,
    prompt_tokens=100,
    cached_tokens=40,
    lag_ns=7_000_000,
)


def live(*records: RequestReport, load_ns: int = 4 * SECOND, **rest: Any) -> LiveRun:
    return LiveRun("live", records, {US: [], EU: []}, load_ns, **rest)


def test_its_shape_is_that_of_a_simulated_run() -> None:
    simulated = figures_of(SCENARIO, World(SCENARIO, SCENARIO.runs[0]).play())
    figures = live_figures(SCENARIO, live(DONE))
    assert set(simulated) <= set(figures)
    assert set(simulated["total"]) == set(figures["total"])
    assert set(simulated["regions"]["us"]) == set(figures["regions"]["us"])
    assert set(document_of(SCENARIO, [simulated])) == set(live_document(SCENARIO, [figures]))
    page = page_of(live_document(SCENARIO, [figures]))
    assert "Without a first token yet" in page
    assert "digest" not in page
    assert "Waiting at the gateways" not in page
    assert "measured on live endpoints" in page
    for figure in ("prefix hits, in engines", "busiest engine / mean", "replicas needed, regions apart"):
        assert f"{figure}</th><td class=unseen>not measured</td>" in page
    assert "Not measured: only gateways know." in page


def test_failures_lag_and_the_machine_are_told() -> None:
    failed = replace(
        DONE, end=RequestEnd.FAILED, first_token_ns=None, served_by=None, output_tokens=0, detail="HTTP 503"
    )
    figures = live_figures(SCENARIO, live(DONE, failed, machine=MachineUse(0.5, 0.7, 0.2)))
    assert figures["total"]["failures"] == {"HTTP 503": 1}
    assert figures["ends"] == {"HTTP 503": 1, "completed": 1}
    assert figures["lag_ms"]["p50"] == 7.0
    assert figures["machine_cpu"] == {"mean_share": 0.5, "peak_share": 0.7, "own_share": 0.2}
    page = page_of(live_document(SCENARIO, [figures]))
    for words in ("HTTP 503", "was 50 % busy", "left 7 ms or more after it was due"):
        assert words in page


def test_an_endpoint_that_tells_no_region_and_no_usage_leaves_those_figures_out() -> None:
    figures = live_figures(SCENARIO, live(replace(DONE, served_by=None, cached_tokens=None, prompt_tokens=None)))
    total = figures["total"]
    assert (total["forwarded_share"], total["cached_share"], total["completed"]) == (None, None, 1)
    assert page_of(live_document(SCENARIO, [figures]))


def test_a_run_stopped_during_the_warm_up_is_shown_whole() -> None:
    figures = live_figures(SCENARIO, live(replace(DONE, sent_ns=0), load_ns=SECOND, is_partial=True))
    assert (figures["load_s"], figures["total"]["requests"], figures["partial"]) == (1.0, 1, True)
    assert live_figures(SCENARIO, live(load_ns=0, is_partial=True))["total"]["requests"] == 0
