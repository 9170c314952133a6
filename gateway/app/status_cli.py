"""`nightside gateway status`: a running gateway's state, and the problems in it.

It shows and judges the contents of `/admin/state`, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import IntEnum

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app.problems import (
    ControlView,
    PeerView,
    ReplicaStatus,
    Status,
    TakenOverView,
    expiry,
    no_replica_usable,
    problems,
    read_status,
)
from gateway.features.status import plain, table_of
from mesh.admin_client import Admin, AdminFault, admin_options
from mesh.clock import Clock

PLAIN_WIDTH = 120
"""Columns when the output is no terminal."""
_SECOND_NS = 1_000_000_000
_PAUSE_S = 0.5


class StatusExitCode(IntEnum):
    """Exit codes of the command; 2 is a command used wrongly, as everywhere."""

    WELL = 0
    SOMETHING_WRONG = 1
    NOT_READY = 3
    NOT_ASKED = 4


class StatusUnavailable(AdminFault):
    """Gateway gave no answer, or none that can be read."""

    exit_code = StatusExitCode.NOT_ASKED


@click.command()
@admin_options
@click.option("--json", "as_json", is_flag=True, help="Print the gateway's whole state and the problems as JSON.")
@click.option(
    "--wait",
    "wait_max_s",
    default=0.0,
    metavar="SECONDS",
    help="Repeat for up to this many seconds, until nothing is wrong.",
)
def status(admin: Admin, *, as_json: bool, wait_max_s: float) -> None:
    """Show the status of a running gateway: readiness, replicas, peers, queue, policy and certificates.

    Exit codes: 0 ready, and nothing is wrong; 1 ready, and something is wrong, which is named; 3 not ready;
    4 it cannot be asked.
    """
    state, seen = _until_well(admin, wait_max_s)
    wrong = [each.line() for each in problems(seen)]
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.json.decode(state), "wrong": wrong}))
    else:
        console = Console(highlight=False)
        print_status(seen, wrong, console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH))
    raise SystemExit(exit_code(seen, wrong))


def _until_well(admin: Admin, wait_max_s: float) -> tuple[bytes, Status]:
    """Return the first state without problems, or the last before time ran out. Raises NotAsked if there is none
    then."""
    clock = Clock()
    give_up_ns = clock.now_ns() + round(wait_max_s * _SECOND_NS)
    while True:
        is_last = clock.now_ns() >= give_up_ns
        try:
            state = _ask(admin)
            seen = _read(admin, state)
        except StatusUnavailable:
            if is_last:
                raise
        else:
            if is_last or not any(problems(seen)):
                return state, seen
        asyncio.run(asyncio.sleep(_PAUSE_S))


def _read(admin: Admin, state: bytes) -> Status:
    try:
        return read_status(state)
    except msgspec.DecodeError as error:
        raise StatusUnavailable(f"{admin.url} does not answer as a gateway of this version does: {error}") from error


def exit_code(seen: Status, wrong: list[str]) -> StatusExitCode:
    if seen.not_ready_reason:
        return StatusExitCode.NOT_READY
    return StatusExitCode.SOMETHING_WRONG if wrong else StatusExitCode.WELL


def print_status(seen: Status, wrong: list[str], console: Console) -> None:
    for line in (*_headlines(seen), *(f"problem: {each}" for each in wrong)):
        console.print(Text(line), soft_wrap=True)
    if seen.replicas:
        console.print(_replicas(seen.replicas))
    if seen.peers:
        console.print(_peers(seen.peers))
    for table in (table for view in seen.views for table in view.tables()):
        console.print(table)


def _headlines(seen: Status) -> Iterator[str]:
    yield f"gateway {seen.gateway} in {seen.region} ({seen.jurisdiction}): {_readiness(seen)}"
    overflow = f", overflow {seen.overflow}" if seen.peers else ""
    yield f"policy {_policy(seen)}; placement {seen.placement_policy}{overflow}"
    queues = ", ".join(f"{length} for {model}" for model, length in seen.queue.by_model.items() if length)
    yield f"requests: {seen.requests} in flight, {seen.queue.length} queued{f' ({queues})' if queues else ''}"
    if seen.taken_over_from is not None:
        yield _taken_over(seen.taken_over_from)
    if seen.control is not None:
        yield _control(seen.control)
    for view in seen.views:
        yield from view.headlines()
    for role, certificate in seen.certificates.items():
        yield f"certificate for {role}: {expiry(certificate.expires_in_s)}"


def _readiness(seen: Status) -> str:
    """Readiness in words. A gateway is ready without its engines: it takes requests, and forwards or queues them."""
    if seen.not_ready_reason:
        return f"not ready, {seen.not_ready_reason}"
    if no_replica_usable(seen):
        return f"ready, but no replica can be used: requests {'are forwarded or wait' if seen.peers else 'wait'}"
    return "ready"


def _taken_over(before: TakenOverView) -> str:
    if before.requests_left is None:
        return f"took over from process {before.pid}, which has ended"
    return f"took over from process {before.pid}, where {before.requests_left} requests still run"


def _control(control: ControlView) -> str:
    who = f"controller {control.controller}" if control.attached else "controller: none"
    if control.snapshot_age_s is None:
        return f"{who}, no snapshot taken"
    taken = f"{who}, snapshot {control.term}.{control.version}, taken {control.snapshot_age_s:.0f} s ago"
    return f"{taken}; left to others: {', '.join(control.away)}" if control.away else taken


def _policy(seen: Status) -> str:
    """Digest of the policy, or why the region is closed. A region without a policy keeps to itself, which matters only
    to a gateway with peers."""
    if not seen.policy.closed_reason:
        return seen.policy.digest
    return (
        f"closed, {seen.policy.closed_reason}"
        if seen.peers
        else f"not needed without peers, {seen.policy.closed_reason}"
    )


def _replicas(replicas: list[ReplicaStatus]) -> Table:
    table = table_of(("Replica", "Region", "Models", "State"), ("Running", "Pending", "In flight", "Held", "Probed"))
    for each in replicas:
        figures = (each.running, each.pending, each.in_flight, each.held, _ago(each.probe_age_ms))
        table.add_row(*map(plain, (each.id, each.region, ", ".join(each.models), each.standing, *figures)))
    return table


def _peers(peers: list[PeerView]) -> Table:
    table = table_of(("Peer", "Region", "State"), ("In flight", "Round trip", "Heard"))
    for each in peers:
        rtt = "" if each.rtt_ms is None else f"{each.rtt_ms:.0f} ms"
        cells = (each.id, each.region, each.standing, each.in_flight, rtt, _ago(each.heartbeat_age_ms))
        table.add_row(*map(plain, cells))
    return table


def _ago(age_ms: float | None) -> str:
    return "never" if age_ms is None else f"{age_ms / 1000:.1f} s ago"


def _ask(admin: Admin) -> bytes:
    try:
        answer = admin.ask("GET", "/admin/state")
    except AdminFault as fault:
        raise StatusUnavailable(fault.message) from fault
    if answer.status != 200:
        raise StatusUnavailable(f"{admin.url}: {answer.fault}")
    return answer.body
