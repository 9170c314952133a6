"""`nightside ctl`: operators' orders to a running controller, and its view of the mesh.

The commands decide nothing: they send an order, and print the controller's answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import click
import msgspec

from controller.ctl.client import CommandRefused, admin_options, ask, changing, read
from controller.ctl.status import status
from controller.history import AuditEntry
from mesh.admin_client import Admin
from mesh.faults import FileError
from mesh.yaml_file import read_yaml


class SubmitCommand(Protocol):
    """Sends an order. `unless_unreachable`: only if no client would reach fewer replicas."""

    def __call__(self, order: dict[str, object], *, unless_unreachable: bool = False) -> None: ...


_PATH = click.Path(path_type=Path)


@click.group()
def ctl() -> None:
    """Query and manage a running controller.

    Exit codes: 0 done, 1 refused and nothing has changed, 2 used wrongly, 3 the controller could not write it down and
    nothing has changed, 4 no answer came. Each command that changes something has --dry-run.
    """


ctl.add_command(status)


@ctl.group()
def replicas() -> None:
    """Manage replicas."""


@replicas.command("add")
@click.argument("replica")
@click.option("--home", help="Set the home gateway of a replica that no region file names.")
@click.option(
    "--file", type=_PATH, help="Read the replica from this YAML file, with the keys of a replica in a region file."
)
@changing
def add_replica(give: SubmitCommand, *, replica: str, home: str | None, file: Path | None) -> None:
    """Add a replica that was removed, or, with --home and --file, one that no region file names."""
    if (home is None) != (file is None):
        raise click.UsageError("--home and --file go together")
    document = "" if file is None else _replica_in(file)
    give({"order": "replica-add", "replica": replica, "home": home or "", "document": document})


@replicas.command("drain")
@click.argument("replica")
@changing
def drain_replica(give: SubmitCommand, *, replica: str) -> None:
    """Drain a replica: no gateway sends it new requests, until it is undrained."""
    give({"order": "replica-drain", "replica": replica})


@replicas.command("undrain")
@click.argument("replica")
@changing
def undrain_replica(give: SubmitCommand, *, replica: str) -> None:
    """Send new requests to a drained replica again."""
    give({"order": "replica-undrain", "replica": replica})


@replicas.command("remove")
@click.argument("replica")
@changing
def remove_replica(give: SubmitCommand, *, replica: str) -> None:
    """Remove a replica, even if a region file still names it."""
    give({"order": "replica-remove", "replica": replica})


@ctl.group()
def gateways() -> None:
    """Manage gateways."""


@gateways.command("add")
@click.argument("gateway")
@click.option(
    "--region", default="", help="Set the region of a gateway that has not announced itself yet; needs --jurisdiction."
)
@click.option("--jurisdiction", default="", help="Set the jurisdiction of a gateway that has not announced itself yet.")
@click.option(
    "--client-address", "addresses", multiple=True, help="Add an address that DNS gives to clients; repeatable."
)
@click.option("--health-url", default="", help="Set the URL of the gateway's health page.")
@click.option("--latitude", type=click.FloatRange(-90, 90), help="Set the latitude, in degrees north.")
@click.option("--longitude", type=click.FloatRange(-180, 180), help="Set the longitude, in degrees east.")
@changing
def add_gateway(give: SubmitCommand, *, gateway: str, addresses: tuple[str, ...], **told: Any) -> None:
    """Add a gateway that was removed, or that has not announced itself yet."""
    if bool(told["region"]) != bool(told["jurisdiction"]):
        raise click.UsageError("--region and --jurisdiction go together")
    give({"order": "gateway-add", "gateway": gateway, "client_addresses": addresses, **told})


@gateways.command("drain")
@click.argument("gateway")
@click.option("--yes", is_flag=True, help="Drain even if clients lose replicas that they can reach now.")
@changing
def drain_gateway(give: SubmitCommand, *, gateway: str, yes: bool) -> None:
    """Move a gateway's clients and replicas to other gateways, until it is undrained.

    If clients would reach fewer replicas, this prints which and why, and changes nothing without --yes.
    """
    give({"order": "gateway-drain", "gateway": gateway}, unless_unreachable=not yes)


@gateways.command("undrain")
@click.argument("gateway")
@changing
def undrain_gateway(give: SubmitCommand, *, gateway: str) -> None:
    """Assign clients and replicas to a drained gateway again."""
    give({"order": "gateway-undrain", "gateway": gateway})


@gateways.command("remove")
@click.argument("gateway")
@changing
def remove_gateway(give: SubmitCommand, *, gateway: str) -> None:
    """Remove a gateway and its replicas, until it is added again."""
    give({"order": "gateway-remove", "gateway": gateway})


@ctl.command()
@click.argument("replicas", nargs=-1, required=True)
@click.option("--to", default="", help="Assign the replicas to this gateway.")
@click.option("--home", is_flag=True, help="Assign each replica to its home gateway again.")
@changing
def move(give: SubmitCommand, *, replicas: tuple[str, ...], to: str, home: bool) -> None:
    """Assign REPLICAS to another gateway, while it is up and the policy of their home allows it."""
    if bool(to) == home:
        raise click.UsageError("say --to GATEWAY or --home")
    give({"order": "replicas-move", "replicas": replicas, "to": to})


@ctl.group()
def policy() -> None:
    """Manage policies that narrow those of the regions; they can only forbid more."""


@policy.command("set")
@click.argument("file", type=_PATH)
@changing
def set_policy(give: SubmitCommand, *, file: Path) -> None:
    """Narrow a region's policy in all of its gateways by FILE, a residency policy."""
    from gateway.policy.file import load_narrowing  # noqa: PLC0415 - half of the start, for one command

    try:
        told = load_narrowing(file)
    except FileError as error:
        raise CommandRefused(str(error)) from error
    give({"order": "policy-set", "policy": msgspec.to_builtins(told)})


@policy.command("clear")
@click.argument("region")
@changing
def clear_policy(give: SubmitCommand, *, region: str) -> None:
    """Remove the distributed policy of REGION; its own policy holds."""
    give({"order": "policy-clear", "region": region})


@ctl.group()
def parameters() -> None:
    """Manage sections of region files that hold for all gateways."""


@parameters.command("set")
@click.argument("file", type=_PATH)
@changing
def set_parameters(give: SubmitCommand, *, file: Path) -> None:
    """Apply the sections of FILE (placement, pushing, queue, attempt, observation) to all gateways."""
    from controller.ctl.parameters import check_parameters  # noqa: PLC0415 - as above

    try:
        sections = read_yaml(file).mapping()
        check_parameters(file, sections)
    except FileError as error:
        raise CommandRefused(str(error)) from error
    give({"order": "parameters-set", "sections": sections})


@parameters.command("clear")
@changing
def clear_parameters(give: SubmitCommand) -> None:
    """Remove the distributed sections; gateways use their own region files."""
    give({"order": "parameters-clear"})


@ctl.group()
def prices() -> None:
    """Manage the price list of all gateways."""


@prices.command("set")
@click.argument("file", type=_PATH)
@changing
def set_prices(give: SubmitCommand, *, file: Path) -> None:
    """Apply the price list of FILE to all gateways, instead of those that their region files name."""
    from gateway.features.prices.file import read_prices_file  # noqa: PLC0415 - as above

    try:
        told = read_prices_file(file).as_document()
    except FileError as error:
        raise CommandRefused(str(error)) from error
    give({"order": "prices-set", "prices": json.loads(told)})


@prices.command("clear")
@changing
def clear_prices(give: SubmitCommand) -> None:
    """Remove the distributed price list; gateways use those that their region files name."""
    give({"order": "prices-clear"})


@ctl.command()
@click.option("--reason", default="", help="Set the reason that `status` shows.")
@changing
def freeze(give: SubmitCommand, *, reason: str) -> None:
    """Suspend automatic failover and reassignment until unfrozen."""
    give({"order": "freeze", "reason": reason})


@ctl.command()
@changing
def unfreeze(give: SubmitCommand) -> None:
    """Resume automatic failover; gateways that are still unreachable are declared down."""
    give({"order": "unfreeze"})


@ctl.command("export")
@admin_options
def export_all(admin: Admin) -> None:
    """Print operators' orders and gateways' announcements as JSON, for `import`."""
    click.echo(json.dumps(json.loads(ask(admin, "GET", "/admin/export").body), indent=2))


@ctl.command("import")
@click.argument("file", type=click.File("rb"))
@changing
def import_all(give: SubmitCommand, *, file: Any) -> None:
    """Replace all operators' orders by those of FILE, an export."""
    try:
        told = msgspec.json.decode(file.read(), type=dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CommandRefused(f"{file.name} is no export: {error}") from error
    give({"order": "import", "documents": told})


@ctl.command()
@click.option("--count", default=50, show_default=True, type=click.IntRange(1, 1000), help="Show this many entries.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@admin_options
def history(admin: Admin, *, count: int, as_json: bool) -> None:
    """Show the operator audit log, oldest first."""
    answer = ask(admin, "GET", f"/admin/history?count={count}")
    if as_json:
        click.echo(answer.body)
        return
    for entry in read(answer, list[AuditEntry]):
        order = {key: told for key, told in entry.order.items() if key != "order" and told not in ("", None, [])}
        proved = f" ({entry.operator}, {entry.role})" if entry.operator else ""
        what = f"{entry.order['order']} {_short(order)} {entry.result}"
        click.echo(f"{entry.time} {entry.by}{proved} from {entry.address}: {what}")


def _short(order: dict[str, object]) -> str:
    text = json.dumps(order, default=str) if order else ""
    return text if len(text) <= 200 else f"{text[:200]}…"


def _replica_in(file: Path) -> str:
    """Read and check a replica's file. Secrets are named by where gateways read them, and are not looked for here."""
    from controller.ctl.replicas import check_replica  # noqa: PLC0415 - as above

    try:
        document = read_yaml(file).mapping()
        return check_replica(file, document)
    except FileError as error:
        raise CommandRefused(str(error)) from error
