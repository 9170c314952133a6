"""`nightside ctl status`: the controller's view of the mesh, and the problems that need an operator.

It shows and judges the content of `/admin/state`, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controller.ctl.client import ExitCode, NotAsked, admin_options, ask
from controller.problems import GatewayView, ReplicaView, State, problems
from mesh.admin_client import Admin

PLAIN_WIDTH = 120
"""Width in columns where the output is no terminal."""


@click.command()
@admin_options
@click.option("--json", "as_json", is_flag=True, help="Print the controller's whole state and the problems as JSON.")
@click.option("--replicas", "with_replicas", is_flag=True, help="List every replica, not only the reassigned ones.")
def status(admin: Admin, *, as_json: bool, with_replicas: bool) -> None:
    """Show gateways, replica assignment and problems.

    Exit codes: 0 nothing is wrong; 1 something is wrong, which is named; 4 it cannot be asked.
    """
    answer = ask(admin, "GET", "/admin/state")
    try:
        seen = msgspec.json.decode(answer.body, type=State)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NotAsked(f"{admin.url} does not answer as a controller of this version does: {error}") from error
    wrong = [each.line() for each in problems(seen)]
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.json.decode(answer.body), "wrong": wrong}))
    else:
        console = Console(highlight=False)
        console = console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
        print_status(seen, wrong, console, with_replicas=with_replicas)
    raise SystemExit(ExitCode.SOMETHING_WRONG if wrong else ExitCode.WELL)


def print_status(seen: State, wrong: list[str], console: Console, *, with_replicas: bool = False) -> None:
    for line in (*_headlines(seen), *(f"problem: {each}" for each in wrong)):
        console.print(Text(line), soft_wrap=True)
    if seen.gateways:
        console.print(_gateways(seen))
    if any(each.wanted for each in seen.gateways):
        console.print(_wanted(seen.gateways))
    shown = [each for each in seen.replicas if with_replicas or not _is_at_home(each)]
    if shown:
        console.print(_replicas(shown))


def _headlines(seen: State) -> Iterator[str]:
    away = sum(1 for each in seen.replicas if each.owner not in ("", each.home))
    yield f"controller {seen.controller}, term {seen.term}, version {seen.version}"
    yield f"{len(seen.gateways)} gateways, {len(seen.replicas)} replicas, {away} of them away from home"
    for region, digest in seen.narrowings.items():
        yield f"policy of {region} narrowed by {digest}"


def _gateways(seen: State) -> Table:
    table = _table(("Gateway", "Region", "Condition", "Attached", "Takes by", "Name leads here from"), ("Replicas",))
    for each in seen.gateways:
        regions = ", ".join(name.region for name in seen.names if each.id in name.gateways)
        condition = f"{each.condition}, drained" if each.drained else each.condition
        taken = "" if each.taken is None else f"{each.taken[0]}.{each.taken[1]}"
        cells = (each.id, each.region, condition, "yes" if each.attached else "no", taken, regions, each.replicas_owned)
        table.add_row(*map(_plain, cells))
    return table


def _wanted(gateways: list[GatewayView]) -> Table:
    """Table of wanted replicas: a region's first gateway, by name, speaks for the others, which follow it."""
    table = _table(("Region", "Pool", "Model", "Reason"), ("Replicas wanted", "Ready"))
    told: set[tuple[str, str, str]] = set()
    for gateway in sorted(gateways, key=lambda each: each.id):
        for each in gateway.wanted:
            key = gateway.region, each.pool, each.model
            if key not in told:
                told.add(key)
                table.add_row(*map(_plain, (*key, each.reason, each.replicas, each.ready)))
    return table


def _replicas(replicas: list[ReplicaView]) -> Table:
    table = _table(("Replica", "Home", "Served by", "Ordered"), ())
    for each in replicas:
        ordered = [word for word, is_so in (("removed", each.removed), ("drained", each.drained)) if is_so]
        ordered += [f"moved to {each.pinned_to}"] if each.pinned_to else []
        table.add_row(*map(_plain, (each.id, each.home, each.owner or "unassigned", ", ".join(ordered))))
    return table


def _is_at_home(replica: ReplicaView) -> bool:
    return replica.owner == replica.home and not replica.pinned_to


def _table(words: tuple[str, ...], figures: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in words:
        table.add_column(header, overflow="fold")
    for header in figures:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _plain(cell: object) -> Text:
    """Return the text without markup: an id may look like markup."""
    return Text(str(cell))
