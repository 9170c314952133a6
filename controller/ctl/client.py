"""Client of `nightside ctl` for a running controller, and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from getpass import getuser
from typing import Any

import click
import msgspec

from mesh.admin_client import Admin, AdminAnswer, AdminFault, PermissionDenied, admin_options_at

ADMIN_URL = "http://127.0.0.1:9091"
admin_options = admin_options_at(ADMIN_URL)


class ExitCode(IntEnum):
    """Exit codes of `nightside ctl`; 2 is wrong usage, as everywhere."""

    WELL = 0
    SOMETHING_WRONG = 1
    """Refused: nothing has changed. With `status`: a problem, which is named."""
    NOT_WRITTEN = 3
    """The store did not accept the change: nothing has changed."""
    NOT_ASKED = 4
    """No answer, or none that can be read: the change may have been made."""


class NotAsked(AdminFault):
    exit_code = ExitCode.NOT_ASKED


class CommandNotWritten(AdminFault):
    exit_code = ExitCode.NOT_WRITTEN


class CommandRefused(AdminFault):
    exit_code = ExitCode.SOMETHING_WRONG


class MoveView(msgspec.Struct, frozen=True):
    replica: str
    before: str | None
    after: str | None
    why: str


class StayView(msgspec.Struct, frozen=True):
    home: str
    replicas: int
    why: str


class UnreachableView(msgspec.Struct, frozen=True):
    region: str
    gateways: list[str]
    home: str
    owner: str | None
    replicas: int
    why: str


class StillLedView(msgspec.Struct, frozen=True):
    gateway: str
    regions: list[str]
    replicas: int


class PreviewView(msgspec.Struct, frozen=True):
    moves: list[MoveView]
    moves_in_all: int
    stays: list[StayView]
    frozen: str
    names: list[tuple[str, list[str]]]
    unreachable: list[UnreachableView] = []
    still_led: list[StillLedView] = []


class OrderView(msgspec.Struct, frozen=True):
    applied: bool
    changes: int
    preview: PreviewView
    term: int
    version: int
    history_fault: str


def ask(admin: Admin, method: str, path: str, body: object | None = None) -> AdminAnswer:
    """Send a request to the controller. Raises NotAsked, CommandNotWritten and CommandRefused."""
    try:
        answer = admin.ask(method, path, body)
    except PermissionDenied as fault:
        raise CommandRefused(fault.message) from fault
    except AdminFault as fault:
        raise NotAsked(fault.message) from fault
    if answer.status == 504:
        raise NotAsked(answer.fault)
    if answer.status == 503:
        raise CommandNotWritten(answer.fault)
    if answer.status != 200:
        raise CommandRefused(answer.fault)
    return answer


def read(answer: AdminAnswer, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NotAsked(f"this is not what a controller of this version answers: {error}") from error


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--dry-run`, `--json` and the admin options to a command, and pass it `give`, which sends its order."""

    @admin_options
    @click.option(
        "--dry-run",
        is_flag=True,
        help="Print which replicas would move, and by which policy, without changing anything.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def with_order(admin: Admin, *, dry_run: bool, as_json: bool, **others: Any) -> None:
        def give(order: dict[str, object], *, unless_unreachable: bool = False) -> None:
            if unless_unreachable and not dry_run:
                _refuse_if_unreachable(_give(admin, order, dry_run=True))
            answer = _give(admin, order, dry_run=dry_run)
            if as_json:
                click.echo(answer.body)
            else:
                tell(read(answer, OrderView))

        command(give, **others)

    return with_order


def _give(admin: Admin, order: dict[str, object], *, dry_run: bool) -> AdminAnswer:
    return ask(admin, "POST", "/admin/orders", {"order": order, "by": getuser(), "dry_run": dry_run})


def _refuse_if_unreachable(answer: AdminAnswer) -> None:
    if lost := read(answer, OrderView).preview.unreachable:
        raise CommandRefused("\n".join(["nothing was ordered; --yes orders it all the same:", *map(in_words, lost)]))


def in_words(lost: UnreachableView) -> str:
    led = f"led to {', '.join(lost.gateways)}" if lost.gateways else "led nowhere"
    served = f"served by {lost.owner}" if lost.owner else "served by no gateway"
    return (
        f"clients in {lost.region}, {led}, reach {lost.replicas} replicas of {lost.home} no more: {served}, {lost.why}"
    )


def in_words_of_drain(still: StillLedView) -> str:
    """Warning about a gateway whose clients or replicas no other gateway may take."""
    clients = [f"clients in {', '.join(still.regions)} still arrive at {still.gateway}"] if still.regions else []
    replicas = [f"{still.replicas} replicas stay with {still.gateway}"] if still.replicas else []
    return (
        f"warning: {' and '.join((*clients, *replicas))}, since no other gateway may take them; before you stop it, "
        f"take it out of the mesh with `nightside ctl gateways remove {still.gateway}`"
    )


def tell(seen: OrderView) -> None:
    """Print in words what an order does, or would do."""
    done = f"in force with {seen.term}.{seen.version}" if seen.applied else "nothing was changed"
    if not seen.changes:
        done = "it is so already"
    click.echo(done)
    preview = seen.preview
    if preview.frozen:
        click.echo(f"frozen, automatic failover and reassignment are suspended: {preview.frozen}")
    for move in preview.moves:
        click.echo(f"{move.replica}: {move.before or 'unassigned'} -> {move.after or 'unassigned'} ({move.why})")
    if preview.moves_in_all > len(preview.moves):
        click.echo(f"and {preview.moves_in_all - len(preview.moves)} more")
    if not preview.moves:
        click.echo("no replica moves")
    for stay in preview.stays:
        click.echo(f"{stay.replicas} of {stay.home}: {stay.why}")
    for region, gateways in preview.names:
        click.echo(f"the name, in {region}: {', '.join(gateways) or 'no gateway'}")
    for lost in preview.unreachable:
        click.echo(in_words(lost))
    for still in preview.still_led:
        click.echo(in_words_of_drain(still))
    if seen.history_fault:
        click.echo(f"warning: {seen.history_fault}", err=True)
