"""The report: one well-formed file that needs nothing else, and shows what was measured."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadgen.figures import Figures
from loadgen.page import page_of, sweep_page
from loadgen.simulator.results import document_of, figures_of
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    document = {
        "name": "small <b>",
        "about": "a & b",
        "duration": "6s",
        "preset": "tiny",
        "round_trips": [["eu", "us", "80ms"]],
        "regions": {"us": {"jurisdiction": "US", "replicas": 1}, "eu": {"jurisdiction": "EU", "replicas": 1}},
        "workloads": {"chat": {"conversations": {}}},
        "clients": [{"region": "us", "workload": "chat", "clients": 12}],
        "faults": [{"kind": "replica_crash", "target": "us/0", "at": "2s", "lasts": "1s"}],
        "runs": [{"system": "skywalker"}, {"system": "region_local"}],
    }
    return parse_scenario(document, Path("small.yaml"))


@pytest.fixture(scope="module")
def measured(scenario: Scenario) -> Figures:
    return document_of(scenario, [figures_of(scenario, World(scenario, run).play()) for run in scenario.runs])


def balanced(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_a_page_is_well_formed_and_needs_no_network(measured: Figures) -> None:
    page = page_of(measured)
    assert page.count("<svg class=boxes") == 3
    assert page.count("<svg class=series") == 3 * 2, "nothing ever waits at the gateways"
    balanced(page)
    assert not re.search(r"https?://|src=|<script|<link|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page


def test_names_are_escaped(measured: Figures) -> None:
    page = page_of(measured)
    assert "small &lt;b&gt;" in page
    assert "a &amp; b" in page


def test_the_figures_are_those_that_were_measured(measured: Figures) -> None:
    page = page_of(measured)
    assert measured["digest"] in page
    assert "replica_crash us/0, 2 to 3 s" in page
    for run in measured["runs"]:
        assert f"p50 {run['total']['ttft_ms']['p50'] / 1000:.3f} s" in page
        assert f"{run['total']['forwarded_share']:.1%}" in page


def test_a_run_in_which_nothing_was_answered_can_be_shown(measured: Figures) -> None:
    nothing = {"ttft_ms": None, "duration_ms": None, "tpot_ms": None, "prefix_hit_rate": None, "forwarded_share": None}
    runs = [run | {"total": run["total"] | nothing, "flows": []} for run in measured["runs"]]
    page = page_of(measured | {"runs": runs})
    balanced(page)
    assert "Nothing was answered." in page


def test_a_sweep_is_one_table(measured: Figures) -> None:
    page = sweep_page("small: 2 variants", [("000 seed=1", measured), ("001 seed=2", measured)])
    assert balanced(page).seen.count("tr") == 1 + 4
