from __future__ import annotations

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from controller.commands import cli
from controller.metrics import ControllerMetrics
from controller.metrics_page import markdown
from mesh.control.vocabulary import Hello
from tests.fakes.attached import hello
from tests.support.core import EU, US
from tests.support.desks import MemoryStore, running_desk
from tests.support.promql import selectors

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/concepts/controller.md").read_text()
RULES = ROOT / "deploy/prometheus/nightside-controller.rules.yaml"
SERIES_PAGE = ROOT / "docs/reference/controller_metrics.md"


def test_the_page_is_as_the_collectors_are_now() -> None:
    assert SERIES_PAGE.read_text() == markdown(), "run make metrics-page"


def test_the_command_prints_or_writes_the_page(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["metrics"])
    assert (printed.exit_code, printed.output) == (0, markdown())
    written = CliRunner().invoke(cli, ["metrics", "-o", str(tmp_path / "page.md")])
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "page.md").read_text() == markdown()


async def test_a_controller_that_runs_has_no_other_series() -> None:
    metrics = ControllerMetrics()
    before = metrics.catalogue()
    async with running_desk(MemoryStore()) as manager:
        metrics.follow(manager, lambda: 0, lambda: True, lambda: 5.0)
        metrics.follow_records(lambda: 0, lambda: False)
        assert metrics.catalogue() == before


def test_alerts_ask_for_what_there_is_and_each_has_its_section() -> None:
    names = {*(each.name for each in ControllerMetrics().catalogue()), "up"}
    alerts = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert all(selector.name in names for alert in alerts for selector in selectors(alert["expr"]))
    sections = re.findall(r"^### (Nightside\w+)$", PAGE, flags=re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts]
    assert all(
        alert["annotations"]["runbook"] == f"docs/concepts/controller.md#{alert['alert'].lower()}" for alert in alerts
    )


def said(name: str) -> Hello:
    return hello(name, US if name.startswith("us") else EU)


async def test_what_is_counted_is_what_happened() -> None:
    metrics = ControllerMetrics()
    async with running_desk(MemoryStore()) as manager:
        metrics.follow(manager, lambda: 2, lambda: False, lambda: 5.0)
        for name in ("us-1", "eu-1"):
            await manager.register(said(name))
            manager.connected(said(name))
        metrics.pushed(5_000)
        metrics.refused("permission_denied")
        page = metrics.render().decode()
    for line in (
        'nightside_controller_gateways{condition="up"} 2.0',
        "nightside_controller_replicas 4.0",
        "nightside_controller_replicas_away 0.0",
        "nightside_controller_ready 0.0",
        "nightside_controller_gateways_attached 2.0",
        "nightside_controller_term 3.0",
        'nightside_controller_snapshot_bytes_bucket{le="10000.0"} 1.0',
        'nightside_controller_streams_refused_total{reason="permission_denied"} 1.0',
    ):
        assert line in page.splitlines()
