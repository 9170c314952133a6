"""`nightside replica`: announces at a gateway that replicas will be gone, by hand or as a host's cloud announces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import click
import msgspec

from gateway.features.leaving.host_watch import GATEWAY_S, HostWatch
from gateway.features.leaving.metadata import METADATA, AwsMetadata, CloudProvider
from mesh.admin_client import Admin, AdminFault, admin_options, credential_options
from mesh.clock import Clock
from mesh.values import parse_duration_ns

_SECOND_NS = 1_000_000_000


@click.group()
def replica() -> None:
    """Announce that a gateway's replica will soon be gone, so that it drains until then.

    Exit codes: 0 it is known, 1 it was refused, or the gateway cannot be asked.
    """


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@replica.command("leave-by")
@_ids
@click.argument("when", metavar="TIME")
@admin_options
def leave_by(admin: Admin, ids: tuple[str, ...], when: str) -> None:
    """Announce that the replicas ID... will be gone within TIME, such as 30s, or by TIME, such as 2026-03-01T12:00:00Z.

    They are sent nothing more. Requests of class batch move at once, others shortly before the end. An id of an engine
    with several ranks names all of them. One that is refused keeps none of the others from being announced.

    Exit codes: 0 all are known to leave, 1 not all.
    """
    body = _body_of(when)

    def announce(wanted: str) -> None:
        for told in _asked(admin, "POST", wanted, body)["leaving"]:
            click.echo(f"{told['replica']} leaves by {told['leave_by']}")

    _for_all(ids, announce)


@replica.command()
@_ids
@admin_options
def withdraw(admin: Admin, ids: tuple[str, ...]) -> None:
    """Send requests to the replicas ID... again: they stay, and operators' announcements are withdrawn.

    One that is refused keeps none of the others from being asked for.

    Exit codes: 0 all stay, 1 not all.
    """

    def stay(wanted: str) -> None:
        told = _asked(admin, "DELETE", wanted, None)["withdrawn"]
        click.echo(f"{wanted} stays" if told else f"{wanted} was not to leave")

    _for_all(ids, stay)


@replica.command("watch-host")
@click.option(
    "--provider",
    type=click.Choice([each.value for each in CloudProvider]),
    required=True,
    help="Set the cloud that the host is in.",
)
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    required=True,
    metavar="URL",
    help="Set the URL of a gateway's admin address; repeatable, and the one that serves a replica is found.",
)
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    required=True,
    metavar="ID",
    help="Announce this replica, which runs on the host; repeatable.",
)
@credential_options
@click.option(
    "--interval", default="2s", show_default=True, metavar="DURATION", help="Set the pause between two looks."
)
@click.option(
    "--lead",
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="Announce an end that is known earlier only this long before it.",
)
@click.option(
    "--rebalance",
    metavar="DURATION",
    help="Take a rebalance recommendation of AWS for an announcement to leave within this time; ignored by default.",
)
@click.option("--metadata-url", metavar="URL", help="Use the metadata service there instead of at the cloud's address.")
def watch_host(
    *,
    provider: CloudProvider,
    gateways: tuple[str, ...],
    replicas: tuple[str, ...],
    token: str | None,
    ca_file: Path | None,
    interval: str,
    lead: str,
    rebalance: str | None,
    metadata_url: str | None,
) -> None:
    """Announce at gateways that this host will be taken away, as soon as its cloud tells the host so.

    Run it beside the engine on a spot or preemptible host, until the host is gone. Announcements are repeated: a
    gateway that cannot be asked, or restarts, hears them later. One that the cloud calls off is withdrawn.

    Exit codes: 2 it was used wrongly; it ends with a signal alone.
    """
    kind = CloudProvider(provider)
    if rebalance is not None and kind is not CloudProvider.AWS:
        raise click.UsageError("--rebalance is of AWS alone")
    rebalance_s = None if rebalance is None else _seconds_in(rebalance, "--rebalance")
    lead_s, interval_s = _seconds_in(lead, "--lead"), _seconds_in(interval, "--interval")
    default_url, metadata_of = METADATA[kind]
    url = (metadata_url or default_url).rstrip("/")

    async def watch() -> None:
        async with aiohttp.ClientSession() as session:
            metadata = metadata_of(session, url) if rebalance_s is None else AwsMetadata(session, url, rebalance_s)
            watched = HostWatch(
                metadata,
                [Admin(each, token, ca_file, GATEWAY_S) for each in gateways],
                replicas,
                lead_s=lead_s,
                wall_s=lambda: Clock.wall_ns() / _SECOND_NS,
                say=lambda line: click.echo(line, err=True),
            )
            await watched.run(interval_s)

    asyncio.run(watch())


def _for_all(ids: Sequence[str], ask: Callable[[str], None]) -> None:
    """Ask for each id, and end with exit code 1 if any was refused."""
    refused = False
    for each in ids:
        try:
            ask(each)
        except AdminFault as fault:
            refused = True
            click.echo(f"Error: {each}: {fault.message}", err=True)
    if refused:
        raise click.exceptions.Exit(1)


def _asked(admin: Admin, method: str, wanted: str, body: object | None) -> dict[str, Sequence[Any]]:
    """Answer of the gateway about one id. Raises AdminFault."""
    answer = admin.ask(method, f"/admin/replicas/{quote(wanted, safe='')}/leave-by", body)
    if answer.status != 200:
        raise AdminFault(answer.fault)
    return msgspec.json.decode(answer.body, type=dict[str, Sequence[Any]])


def _body_of(when: str) -> dict[str, object]:
    """Body of an order for a duration or a time. Raises click.BadParameter."""
    with suppress(ValueError):
        return {"seconds": parse_duration_ns(when) / _SECOND_NS}
    with suppress(ValueError):
        if datetime.fromisoformat(when).tzinfo is not None:
            return {"at": when}
    raise click.BadParameter(f"{when} is neither a duration such as 30s nor a time such as 2026-03-01T12:00:00Z")


def _seconds_in(text: str, option: str) -> float:
    try:
        return parse_duration_ns(text) / _SECOND_NS
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
