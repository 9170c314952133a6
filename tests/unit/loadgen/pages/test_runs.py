"""The report: one well-formed file that needs nothing else, and shows the measurements."""

from __future__ import annotations

import re
from copy import deepcopy
from html.parser import HTMLParser

import pytest

from loadgen.figures import Figures
from loadgen.pages.runs import page_of, sweep_page
from loadgen.simulator.results import document_of, figures_of
from loadgen.simulator.scenario import Scenario
from loadgen.simulator.world import World
from tests.support.scenarios import small_scenario


class Balance(HTMLParser):
    """Parser that checks that every opened element is closed, in order."""

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
    return small_scenario(
        name="small <b>",
        about="a & b",
        duration="6s",
        clients=[{"region": "us", "workload": "chat", "clients": 12}],
        faults=[{"kind": "replica_crash", "target": "us/0", "at": "2s", "lasts": "1s"}],
        runs=[{"system": "skywalker"}, {"system": "region_local"}],
    )


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
    assert not re.search(r"https?://|src=|href=|<script|<link|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page


def test_names_are_escaped(measured: Figures) -> None:
    page = page_of(measured)
    assert "small &lt;b&gt;" in page
    assert "a &amp; b" in page


def test_nothing_that_a_document_holds_becomes_markup(measured: Figures) -> None:
    """Every name that may come from a file or from the wire, all at once."""
    nasty = '"><script>x</script>'
    document = deepcopy(measured) | {"scenario": nasty, "about": nasty, "regions": [nasty, "eu"], "digest": nasty}
    document["faults"] = [{"fault": nasty, "from_s": 1, "to_s": 2}]
    for run in document["runs"]:
        run["name"] += nasty
        run["regions"][nasty] = run["regions"].pop("us")
        run["series"][nasty] = run["series"].pop("us")
        run["flows"] = [{"client_region": nasty, "engine_region": nasty, "requests": 3}]
        run["placements"] = [{"from": nasty, "to": "eu", "reason": nasty, "attempts": 3}]
        run["refusals"] = {nasty: 1}
        run["total"]["failures"] = {nasty: 1}
    page = page_of(document)
    assert "script" not in balanced(page).seen
    assert "script" not in balanced(sweep_page(nasty, [(nasty, document)])).seen


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


def test_what_was_run_and_which_run_did_best_come_before_plots_and_tables(measured: Figures) -> None:
    page = page_of(measured)
    places = [
        page.index(words) for words in ("<h1>", "2 replicas in 2 regions", "In short", "<svg class=boxes", "By region")
    ]
    assert places == sorted(places)
    best = max(measured["runs"], key=lambda run: run["total"]["tokens_per_s"])
    assert f"{best['total']['tokens_per_s']:,.0f}\u00a0/s" in page[places[2] : places[3]]


def test_plots_tell_what_they_show_and_tables_have_heads(measured: Figures) -> None:
    page = page_of(measured)
    plots = re.findall(r"<svg class=(?:boxes|series)[^>]*>", page)
    assert plots
    assert all('role="img" aria-label="' in plot for plot in plots)
    tables = page.count("<table")
    assert page.count("<thead>") == page.count("tabindex=0 aria-label=") == tables
    assert "<td></td>" not in page
    assert '<html lang="en">' in page


def test_forwards_are_told_by_their_reason_and_share(measured: Figures) -> None:
    document = deepcopy(measured)
    document["runs"] = document["runs"][:1]
    document["runs"][0]["placements"] = [
        {"from": "us", "to": "us", "reason": "local_prefix", "attempts": 6},
        {"from": "us", "to": "eu", "reason": "remote_prefix", "attempts": 3},
        {"from": "us", "to": "eu", "reason": "remote_nearest", "attempts": 1},
    ]
    page = page_of(document)
    for words in ("forwarded, all</th><td>4<small>40.0%", "remote_prefix</th><td>3<small>30.0%"):
        assert words in page


@pytest.mark.nightly
def test_a_long_run_of_many_regions_is_a_small_page(measured: Figures) -> None:
    """A day by the second in 40 regions and 8 runs would be some hundred megabytes."""
    document = deepcopy(measured)
    names = [f"region-{number}" for number in range(40)]
    day = {key: list(range(86_400)) for key in document["runs"][0]["series"]["us"]}
    run = document["runs"][0]
    run["series"], run["regions"] = dict.fromkeys(names, day), dict.fromkeys(names, run["regions"]["us"])
    document |= {"regions": names, "runs": [run | {"name": f"run {number}"} for number in range(8)]}
    page = page_of(document)
    assert len(page) < 4_000_000
    assert "28 more are not drawn" in page


def test_a_sweep_is_one_table(measured: Figures) -> None:
    page = sweep_page("small: 2 variants", [("000 seed=1", measured), ("001 seed=2", measured)])
    assert balanced(page).seen.count("tr") == 1 + 4
