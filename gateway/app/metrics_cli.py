"""`nightside gateway metrics`: every series that a gateway's metrics page may have. It asks no running gateway."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml
from msgspec import to_builtins

from gateway.app.metrics_catalogue import catalogue
from gateway.app.metrics_page import markdown, rules_in


@click.command()
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show the alerts of this file of Prometheus rules.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the list to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a Markdown page.")
def metrics(*, rules: Path | None, output: Path | None, as_json: bool) -> None:
    """List every series of a gateway's metrics: name, type, labels, meaning and, with --rules, the alerts on it."""
    text = _as_json() if as_json else _as_page(rules)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _as_json() -> str:
    return json.dumps(to_builtins(catalogue()), indent=2) + "\n"


def _as_page(rules: Path | None) -> str:
    document = {"groups": []} if rules is None else yaml.safe_load(rules.read_text(encoding="utf-8"))
    return markdown(catalogue(), rules_in(document))
