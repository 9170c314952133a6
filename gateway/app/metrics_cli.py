"""`nightside gateway metrics`: every series that a gateway's metrics page may have. It asks no running gateway."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from gateway.app.desk import Desk
from gateway.config.sections import AuditConfig, GatewayConfig
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from gateway.ground.clock import Clock
from gateway.ground.config import LoggingConfig
from gateway.ground.logs import make_logger
from gateway.ground.series import Described
from gateway.records.metrics_page import markdown, rules_in


@click.command()
@click.option("--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Prometheus rules to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a page in Markdown.")
def metrics(*, rules: Path | None, as_json: bool) -> None:
    """List every series of a gateway's metrics: name, type, labels, meaning and, with --rules, the alerts on it."""
    series = every_series()
    if as_json:
        click.echo(json.dumps([asdict(each) for each in series], indent=2))
        return
    document = {"groups": []} if rules is None else yaml.safe_load(rules.read_text(encoding="utf-8"))
    click.echo(markdown(series, rules_in(document)), nl=False)


def every_series() -> list[Described]:
    """Asks a desk at which nobody works yet, with everything switched on that has series of its own."""
    place = Place(RegionName("nowhere"), Jurisdiction("nowhere"))
    with tempfile.TemporaryDirectory() as folder:
        config = GatewayConfig(
            gateway_id=GatewayId("none"),
            place=place,
            policy_file=None,
            replicas=(),
            peers=(),
            audit=AuditConfig(folder=Path(folder)),
        )
        clock = Clock()
        desk = Desk(config, clock, make_logger(LoggingConfig(), config.gateway_id, clock=clock))
        try:
            return desk.metrics.catalogue()
        finally:
            desk.close()
