"""`nightside gateway usage`: what clients of a running gateway used, by day, key and tenant. It changes nothing."""

from __future__ import annotations

import json
from datetime import date, timedelta
from urllib.parse import urlencode

import click
import msgspec

from mesh.admin_client import Admin, AdminFault, admin_options

_COLUMNS = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")


class _Row(msgspec.Struct, frozen=True):
    day: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    key: str = ""
    tenant: str = ""


class _Page(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    first: str
    last: str
    rows: list[_Row]
    truncated: bool


@click.command()
@click.option("--by", type=click.Choice(["key", "tenant"]), help="Sum usage by key or by tenant instead of by both.")
@click.option(
    "--days",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Show this many days (UTC), including today.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@admin_options
def usage(admin: Admin, by: str | None, days: int, as_json: bool) -> None:
    """Show usage by day, key and tenant."""
    page = _ask(admin, by, None)
    if days > 1:
        first = date.fromisoformat(page.last) - timedelta(days=days - 1)
        page = _ask(admin, by, first.isoformat())
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(page), indent=2))
        return
    names = [name for name in ("day", "key", "tenant") if name != {"key": "tenant", "tenant": "key"}.get(by or "")]
    _print_table([*names, *_COLUMNS], page.rows)
    if page.truncated:
        click.echo("there are more rows: ask for fewer days, or --by one of them", err=True)


def _ask(admin: Admin, by: str | None, first: str | None) -> _Page:
    asked = {name: text for name, text in (("by", by), ("from", first)) if text is not None}
    answer = admin.ask("GET", f"/admin/usage?{urlencode(asked)}")
    if answer.status != 200:
        raise AdminFault(answer.fault)
    try:
        return msgspec.json.decode(answer.body, type=_Page)
    except msgspec.DecodeError as error:
        raise AdminFault(f"{admin.url} does not answer as a gateway does: {error}") from error


def _print_table(names: list[str], rows: list[_Row]) -> None:
    table = [names, *([str(getattr(row, name)) or "-" for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
