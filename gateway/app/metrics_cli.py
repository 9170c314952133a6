"""`nightside gateway metrics`: every series that a gateway's metrics page may have. It asks no running gateway."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from gateway.records.catalogue import catalogue
from gateway.records.metrics_page import markdown, rules_in


@click.command()
@click.option("--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Prometheus rules to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a page in Markdown.")
def metrics(*, rules: Path | None, as_json: bool) -> None:
    """List every series of a gateway's metrics: name, type, labels, meaning and, with --rules, the alerts on it."""
    series = catalogue()
    if as_json:
        click.echo(json.dumps([asdict(each) for each in series], indent=2))
        return
    document = {"groups": []} if rules is None else yaml.safe_load(rules.read_text(encoding="utf-8"))
    click.echo(markdown(series, rules_in(document)), nl=False)
