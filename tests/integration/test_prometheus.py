"""Files under deploy/, checked with real gateways, promtool and a real Prometheus: every series and label exists."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.metrics_catalogue import catalogue
from gateway.app.metrics_page import label_of, markdown, rules_in, sample_names
from gateway.config.sections import AuditConfig
from gateway.features.scaling.config import ScaledPoolConfig, ScalingConfig
from tests.support.core import MODEL
from tests.support.gateways import ENOUGH_S, ask
from tests.support.nightly import first_of
from tests.support.programs import killed_at_the_end
from tests.support.promql import (
    OF_THE_SCRAPE,
    ROOT,
    RULES,
    Matcher,
    dashboard,
    dashboard_queries,
    grouping_labels,
    rules,
    selectors,
)
from tests.support.regions import Mesh, Region, busy_us_and_free_eu

STORIES = RULES.with_name("nightside.rules_test.yaml")
CONTROLLER_RULES = RULES.with_name("nightside-controller.rules.yaml")
PAGE = ROOT / "docs/reference/metrics.md"
TOKEN = "operators-only"
STORIES_TOLD: list[dict[str, Any]] = yaml.load(STORIES.read_text(), yaml.CSafeLoader)["tests"]
ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDINGS = [rule for rule in rules() if "record" in rule]
LABELS = {name: {*each.labels, *OF_THE_SCRAPE} for each in catalogue() for name in sample_names(each)}
CLOSED = {
    (name, label): set(label_of(each.name, label).values)
    for each in catalogue()
    for name in sample_names(each)
    for label in each.labels
}
_BUCKETS = {name for name in LABELS if name.endswith("_bucket")}


def promtool(*arguments: str | Path, told: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run promtool; what it complains of is part of its output."""
    return subprocess.run(
        ["promtool", *map(str, arguments)], input=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def faults_in(expression: str) -> Iterator[str]:
    """Names in an expression that no gateway exports."""
    recorded = {rule["record"] for rule in RECORDINGS}
    known = {**LABELS, "up": set(OF_THE_SCRAPE)}
    labels = set[str]()
    for selector in selectors(expression):
        if selector.name in recorded:
            labels |= {"model", "instance"}
            continue
        if selector.name not in known:
            yield f"no gateway has {selector.name}"
            continue
        labels |= known[selector.name] | ({"le"} if selector.name in _BUCKETS else set())
        for matcher in selector.matchers:
            if matcher.label not in known[selector.name]:
                yield f"{selector.name} has no label {matcher.label}"
            elif values := CLOSED.get((selector.name, matcher.label)):
                yield from _values_unheard_of(matcher, values)
    yield from (f"nothing here has a label {label}" for label in sorted(grouping_labels(expression) - labels))


def _values_unheard_of(matcher: Matcher, values: set[str]) -> Iterator[str]:
    for wanted in matcher.value.split("|") if "~" in matcher.how else [re.escape(matcher.value)]:
        if not any(re.fullmatch(wanted, value) for value in values):
            yield f"{matcher.label} is never {wanted}"


QUERIES = [
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()),
    *dashboard_queries(dashboard()),
]


def test_the_page_is_as_the_gateway_would_write_it_now() -> None:
    rules_now = rules_in(yaml.safe_load(RULES.read_text()))
    assert PAGE.read_text() == markdown(catalogue(), rules_now), "run make metrics-page"


@pytest.mark.parametrize(
    ("name", "query"), QUERIES, ids=[f"{number}-{name}" for number, (name, _) in enumerate(QUERIES)]
)
def test_a_query_names_only_what_gateways_have(name: str, query: str) -> None:
    assert list(faults_in(query)) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("rate(nightside_request_total[5m])", "no gateway has nightside_request_total"),
        ('nightside_ready{gateway="a"}', "nightside_ready has no label gateway"),
        ('rate(nightside_requests_total{outcome="complete"}[5m])', "outcome is never complete"),
        ('rate(nightside_requests_total{outcome=~"failed_.*|lost_.*"}[5m])', "outcome is never lost_.*"),
        ("sum by (outcom) (rate(nightside_requests_total[5m]))", "nothing here has a label outcom"),
        ("nightside:no_such:rate5m > 1", "no gateway has nightside:no_such:rate5m"),
    ],
)
def test_a_query_that_names_something_else_is_found(query: str, fault: str) -> None:
    assert list(faults_in(query)) == [fault]


def test_the_rules_and_the_example_of_a_configuration_are_valid() -> None:
    for done in (
        promtool("check", "rules", RULES, CONTROLLER_RULES),
        promtool("check", "config", RULES.with_name("prometheus.yaml")),
    ):
        assert done.returncode == 0, done.stdout


def test_the_example_of_a_configuration_loads_all_rules_and_scrapes_every_job_that_they_name() -> None:
    config = yaml.safe_load(RULES.with_name("prometheus.yaml").read_text())
    assert {RULES.parent / name for name in config["rule_files"]} == {RULES, CONTROLLER_RULES}
    scraped = {each["job_name"] for each in config["scrape_configs"]}
    documents = [yaml.safe_load((RULES.parent / name).read_text()) for name in config["rule_files"]]
    asked = [rule["expr"] for document in documents for group in document["groups"] for rule in group["rules"]]
    named = {
        matcher.value
        for expression in asked
        for selector in selectors(expression)
        for matcher in selector.matchers
        if matcher.label == "job"
    }
    assert named == scraped == {"nightside", "nightside-controller"}
    page = (ROOT / "docs/how_to/alerts.md").read_text()
    assert all(f"`{job}`" in page for job in named)


def test_the_stories_of_the_controllers_alerts_hold() -> None:
    done = promtool("test", "rules", CONTROLLER_RULES.with_name("nightside-controller.rules_test.yaml"))
    assert done.returncode == 0, done.stdout


def stories_of(folder: Path, alert: dict[str, Any], recordings: list[dict[str, Any]] = RECORDINGS) -> Path:
    """Write the stories of one alert, and the rules that they need: the alert and the recordings, but no other alert,
    all of which promtool would evaluate at each of its steps.
    """
    name = alert["alert"]
    rules_file, stories_file = folder / f"{name}.rules.yaml", folder / f"{name}.rules_test.yaml"
    rules_file.write_text(json.dumps({"groups": [{"name": "needed", "rules": [*recordings, alert]}]}))
    told = [story for story in STORIES_TOLD if story["name"].split()[0] == name]
    steps = {"evaluation_interval": "15s", "rule_files": [rules_file.name], "tests": told}
    stories_file.write_text(json.dumps(steps))
    return stories_file


@pytest.mark.nightly
def test_each_alert_fires_in_one_story_and_is_silent_in_another(tmp_path: Path) -> None:
    told = {alert["alert"]: set[bool]() for alert in ALERTS}
    for story in STORIES_TOLD:
        assert all(isinstance(series["values"], str) for series in story["input_series"]), "YAML reads 0x60 as 96"
        for expected in story["alert_rule_test"]:
            assert expected["alertname"] == story["name"].split()[0]
            told[expected["alertname"]].add(bool(expected["exp_alerts"]))
    assert all(both == {True, False} for both in told.values())
    done = promtool("test", "rules", *(stories_of(tmp_path, alert) for alert in ALERTS))
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
def test_the_stories_hold_with_all_rules_in_force() -> None:
    done = promtool("test", "rules", STORIES)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("defect", first_of(["never", "always"]))
def test_the_stories_notice_an_alert_that_is_wrong(tmp_path: Path, defect: str) -> None:
    """Each alert is wrong in its own stories alone; one promtool plays all of them, and reports file by file."""
    wrong = f"vector({int(defect == 'always')}) == 1"
    files = {alert["alert"]: stories_of(tmp_path, alert | {"expr": wrong}, []) for alert in ALERTS}
    done = promtool("test", "rules", *files.values())
    assert done.returncode == 1, done.stdout
    reports = done.stdout.decode().split("Unit Testing:")[1:]
    unnoticed = [report for report in reports if "FAILED" not in report]
    assert (len(reports), unnoticed) == (len(ALERTS), [])


def test_each_alert_has_its_section_and_no_section_is_left_over() -> None:
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs/how_to/alerts.md").read_text(), flags=re.MULTILINE)
    assert sorted(sections) == sorted(alert["alert"] for alert in ALERTS)
    for alert in ALERTS:
        assert alert["annotations"]["runbook"] == f"docs/how_to/alerts.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in {"page", "ticket"}


def test_the_dashboard_hangs_together() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    squares = [
        (panel["gridPos"]["x"] + right, panel["gridPos"]["y"] + down)
        for panel in panels
        for right in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(squares) == len(set(squares)), "panels lie on each other"
    assert max(x for x, _ in squares) < 24
    declared = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for panel in (panel for panel in panels if panel["type"] != "row"):
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {*declared, "__rate_interval"}
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            known = {label for each in selectors(target["expr"]) for label in LABELS.get(each.name, {"instance"})}
            assert legend <= known, (panel["title"], legend - known)


# Comparison with a real scrape


@pytest.fixture
async def busy_us(mesh: Mesh, tmp_path: Path) -> Region:
    """One of two regions that have used nearly every feature."""
    audit = AuditConfig(folder=tmp_path / "audit")
    pool = ScaledPoolConfig(model=MODEL, concurrency=8, replicas_max=2)
    scaling = ScalingConfig(pools=(pool,), interval_ns=100_000_000)
    us, _ = await busy_us_and_free_eu(mesh, is_pooled=True, audit=audit, admin_token=TOKEN, scaling=scaling)
    await a_little_of_everything(us, mesh.session)
    return us


async def a_little_of_everything(us: Region, session: aiohttp.ClientSession) -> None:
    async with ask(session, us.gateway.http_url) as forwarded:
        await forwarded.read()
    await us.become_free()
    async with ask(session, us.gateway.http_url) as local:
        await local.read()
    await us.become_busy()
    async with ask(session, us.gateway.http_url, model="nobody-serves-this") as refused:
        assert refused.status == 404


async def test_every_series_that_is_scraped_is_on_the_page(busy_us: Region, session: aiohttp.ClientSession) -> None:
    shown = {"authorization": f"Bearer {TOKEN}"}
    async with session.get(f"{busy_us.gateway.admin_url}/metrics", headers=shown) as response:
        page = await response.text()
    seen = 0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == LABELS[sample.name] - OF_THE_SCRAPE, sample.name
            for label, value in sample.labels.items():
                values = CLOSED.get((sample.name, label))
                assert not values or value in values, (sample.name, label, value)
            seen += 1
    assert seen > 100
    assert all(f"| `{each.name}` |" in PAGE.read_text() for each in catalogue())
    checked = promtool("check", "metrics", told=page.encode())
    assert (checked.returncode, checked.stdout) == (0, b"")


NOT_HERE = {
    "nightside_batches": "no folder of batches is named",
    "nightside_batches_at_risk": "no folder of batches is named",
    "nightside_batch_store_up": "no folder of batches is named",
    "nightside_batches_stopped": "no folder of batches is named",
    "nightside_batch_lines_total": "no folder of batches is named",
    "nightside_cached_tokens_total": "the fake engine has no cache",
    "nightside_prefix_cached_share_sum": "the fake engine has no cache",
    "nightside_prefix_cached_share_count": "the fake engine has no cache",
    "nightside_certificate_expiry_seconds": "no TLS",
    "nightside_control_attached": "no controller is named",
    "nightside_control_replicas_left_out": "no controller is named",
    "nightside_control_snapshot_kept": "no controller is named",
    "nightside_control_snapshots_total": "no controller is named",
    "nightside_forwards_received_total": "nobody forwards to us",
    "nightside_issuer_unreachable": "no issuer is named",
    "nightside_issuer_unusable": "no issuer is named",
    "nightside_model_identity_mismatches_total": "the model is the same everywhere",
    "nightside_peers_refused_total": "nobody lied",
    "nightside_pool_misroutes_total": "no pool has a threshold",
    "nightside_pool_placements_total": "no pool has a threshold",
    "nightside_pool_preemptions_total": "no engine put anybody back",
    "nightside_prices_valid_seconds": "there are no prices",
    "nightside_refusals_total": "no key was asked for",
    "nightside_reload_refused": "nothing was read anew",
    "nightside_supervised_restarts_total": "nothing failed",
}
"""Series that a gateway exports only after an event that does not happen here, and that event."""
BY_CHANCE = {"nightside_forwards_refused_total", "nightside_retries_total"}
"""Series that a momentarily full peer leads to."""


class Prometheus:
    """A real Prometheus that scrapes a gateway twice a second and evaluates the product's rules."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def ask(self, query: str) -> list[dict[str, Any]]:
        async with self._session.get(f"{self._url}/api/v1/query", params={"query": query}) as response:
            answer = await response.json()
            assert answer["status"] == "success", (query, answer)
            found: list[dict[str, Any]] = answer["data"]["result"]
            return found

    async def has(self, query: str) -> bool:
        try:
            return bool(await self.ask(query))
        except aiohttp.ClientError:
            return False

    async def finds(self, query: str) -> bool:
        """True once there is an answer: after a scrape that took longer than the interval, all series are gone until
        the next one."""
        try:
            async with asyncio.timeout(ENOUGH_S):
                while not await self.ask(query):  # noqa: ASYNC110 - Prometheus tells of no scrape
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def scraping(folder: Path, admin: str, port: int, session: aiohttp.ClientSession) -> AsyncIterator[Prometheus]:
    config = yaml.safe_load(RULES.with_name("prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(RULES), str(CONTROLLER_RULES)]
    (folder / "admin-token").write_text(TOKEN + "\n")
    config["scrape_configs"][0] |= {
        "static_configs": [{"targets": [admin]}],
        "authorization": {"credentials_file": str(folder / "admin-token")},
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    async with killed_at_the_end(process):
        yield Prometheus(f"http://127.0.0.1:{port}", session)


async def test_every_query_finds_what_it_asks_for(
    tmp_path: Path, busy_us: Region, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    admin = str(busy_us.gateway.admin_address)
    async with scraping(tmp_path, admin, unused_tcp_port, session) as prometheus:
        while not await prometheus.has(
            "nightside:requests_rejected:ratio5m and count_over_time(nightside_ready[1m]) > 2"
        ):
            await a_little_of_everything(busy_us, session)
            await asyncio.sleep(0.1)
        asked = set[str]()
        for name, query in QUERIES:
            await prometheus.ask(query)
            for selector in selectors(query):
                asked.add(selector.name)
                is_failure = any(matcher.label in {"outcome", "result"} for matcher in selector.matchers)
                if (
                    selector.name not in {*NOT_HERE, *BY_CHANCE}
                    and not is_failure
                    and not _is_of_failures(selector.name)
                ):
                    assert await prometheus.finds(selector.text), f"{name} asks for {selector.text}, which is not there"
        assert asked >= NOT_HERE.keys()
        found = {name: await prometheus.ask(name) for name in NOT_HERE}
        assert [name for name, series in found.items() if series] == [], "it is here after all"
        for title, query in dashboard_queries(dashboard()):
            names = {selector.name for selector in selectors(query)}
            if not names & {*NOT_HERE, *BY_CHANCE} and not any(map(_is_of_failures, names)):
                assert await prometheus.finds(query), f"the panel {title} stays empty"


def _is_of_failures(name: str) -> bool:
    return name in {"nightside:requests_failed:ratio5m", "nightside:refusals:rate5m"}
