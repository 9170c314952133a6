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

from gateway.core.vocabulary import Standing
from gateway.features.catalogue import KINDS
from gateway.features.status import StatusView, because, plain, table_of
from mesh.admin_client import Admin, AdminFault, admin_options
from mesh.clock import Clock

PLAIN_WIDTH = 120
"""Columns when the output is no terminal."""
_DAY_S = 86_400
_SECOND_NS = 1_000_000_000
_PAUSE_S = 0.5
_SICK = frozenset({Standing.UNHEALTHY, Standing.LOST, Standing.STALE, Standing.DISTRUSTED, Standing.BREAKER})
"""Standings that do not pass with the next request that ends."""


class ExitCode(IntEnum):
    """Exit codes of the command; 2 is a command used wrongly, as everywhere."""

    WELL = 0
    SOMETHING_WRONG = 1
    NOT_READY = 3
    NOT_ASKED = 4


class NotAsked(AdminFault):
    """Gateway gave no answer, or none that can be read."""

    exit_code = ExitCode.NOT_ASKED


class PolicyState(msgspec.Struct, frozen=True):
    digest: str
    closed_reason: str


class QueueState(msgspec.Struct, frozen=True):
    length: int
    by_model: dict[str, int]


class ReplicaView(msgspec.Struct, frozen=True):
    id: str
    region: str
    models: list[str]
    standing: str
    detail: str
    running: int
    pending: int
    in_flight: int
    probe_age_ms: float | None
    held: int = 0


class PeerView(msgspec.Struct, frozen=True):
    id: str
    region: str
    usable: bool
    standing: str
    detail: str
    accepting: bool
    in_flight: int
    rtt_ms: float | None
    heartbeat_age_ms: float | None


class CertificateView(msgspec.Struct, frozen=True):
    expires_in_s: int
    expires_soon: bool


class ControlView(msgspec.Struct, frozen=True):
    attached: bool
    controller: str
    silent_s: float | None
    last_loss: str
    term: int
    version: int
    snapshot_age_s: float | None
    not_kept_reason: str
    last_rejection: str
    left_out: dict[str, str]
    away: list[str]


class TakenOverView(msgspec.Struct, frozen=True):
    pid: int
    requests_left: int | None


class Status(msgspec.Struct, frozen=True):
    """Part of `/admin/state` that is shown."""

    gateway: str
    region: str
    jurisdiction: str
    not_ready_reason: str
    draining: bool
    policy: PolicyState
    placement_policy: str
    overflow: str
    requests: int
    queue: QueueState
    replicas: list[ReplicaView]
    peers: list[PeerView]
    certificates: dict[str, CertificateView]
    journal_fault: str
    audit_fault: str
    control: ControlView | None = None
    """Controller link; None where no controllers are named."""
    taken_over_from: TakenOverView | None = None
    """Take-over; None where the process started by itself."""
    views: tuple[StatusView, ...] = ()
    """Parts of the features, as far as the state has any."""


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
    wrong = list(complaints(seen))
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
        except NotAsked:
            if is_last:
                raise
        else:
            if is_last or not any(complaints(seen)):
                return state, seen
        asyncio.run(asyncio.sleep(_PAUSE_S))


def _read(admin: Admin, state: bytes) -> Status:
    try:
        return read_status(state)
    except msgspec.DecodeError as error:
        raise NotAsked(f"{admin.url} does not answer as a gateway of this version does: {error}") from error


def read_status(state: bytes) -> Status:
    """Read a gateway's state, with the parts of its features. Raises msgspec.DecodeError."""
    seen = msgspec.json.decode(state, type=Status)
    parts = msgspec.json.decode(state, type=dict[str, msgspec.Raw])
    kinds = {key: view for kind in KINDS for key, view in kind.views.items() if parts.get(key) not in (None, b"null")}
    views = [msgspec.json.decode(parts[key], type=view) for key, view in kinds.items()]
    return msgspec.structs.replace(seen, views=tuple(views))


def exit_code(seen: Status, wrong: list[str]) -> ExitCode:
    if seen.not_ready_reason:
        return ExitCode.NOT_READY
    return ExitCode.SOMETHING_WRONG if wrong else ExitCode.WELL


def complaints(seen: Status) -> Iterator[str]:
    """Problems that an operator should solve, worst first."""
    if seen.not_ready_reason:
        yield f"not ready: {seen.not_ready_reason}"
    if seen.replicas and all(replica.standing in _SICK for replica in seen.replicas):
        yield "no replica can be used"
    for replica in seen.replicas:
        if replica.standing in _SICK:
            yield f"replica {replica.id} is {replica.standing}{because(replica.detail)}"
    for view in seen.views:
        yield from view.grave_complaints()
    if seen.policy.closed_reason and seen.peers:
        yield f"nothing is forwarded: {seen.policy.closed_reason}"
    for peer in seen.peers:
        if peer.standing in _SICK:
            yield f"peer {peer.id} is {peer.standing}{because(peer.detail)}"
    for role, certificate in seen.certificates.items():
        if certificate.expires_soon:
            yield f"the certificate for {role} {_expiry(certificate.expires_in_s)}"
    if seen.control is not None:
        yield from _control_complaints(seen.control)
    for view in seen.views:
        yield from view.complaints()
    if seen.journal_fault:
        yield f"the journal has stopped: {seen.journal_fault}"
    if seen.audit_fault:
        yield f"the audit record cannot be written: {seen.audit_fault}"


def _control_complaints(control: ControlView) -> Iterator[str]:
    if not control.attached:
        yield f"no controller is attached{because(control.last_loss)}"
    if control.last_rejection:
        yield f"the controller's last snapshot was rejected: {control.last_rejection}"
    for replica_id, why in control.left_out.items():
        yield f"replica {replica_id} is granted and left out: {why}"
    if control.not_kept_reason:
        yield f"the controller's last word is not kept over a restart: {control.not_kept_reason}"


def print_status(seen: Status, wrong: list[str], console: Console) -> None:
    for line in (*_headlines(seen), *(f"wrong: {each}" for each in wrong)):
        console.print(Text(line), soft_wrap=True)
    if seen.replicas:
        console.print(_replicas(seen.replicas))
    if seen.peers:
        console.print(_peers(seen.peers))
    for table in (table for view in seen.views for table in view.tables()):
        console.print(table)


def _headlines(seen: Status) -> Iterator[str]:
    ready = f"not ready, {seen.not_ready_reason}" if seen.not_ready_reason else "ready"
    yield f"gateway {seen.gateway} in {seen.region} ({seen.jurisdiction}): {ready}"
    yield f"policy {_policy(seen)}; placement {seen.placement_policy}, overflow {seen.overflow}"
    queues = ", ".join(f"{length} for {model}" for model, length in seen.queue.by_model.items() if length)
    yield f"requests: {seen.requests} open, {seen.queue.length} of them wait{f' ({queues})' if queues else ''}"
    if seen.taken_over_from is not None:
        yield _taken_over(seen.taken_over_from)
    if seen.control is not None:
        yield _control(seen.control)
    for view in seen.views:
        yield from view.headlines()
    for role, certificate in seen.certificates.items():
        yield f"certificate for {role}: {_expiry(certificate.expires_in_s)}"


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


def _replicas(replicas: list[ReplicaView]) -> Table:
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


def _expiry(left_s: int) -> str:
    if left_s <= 0:
        return "has expired"
    return f"expires in {left_s // _DAY_S} days" if left_s >= 2 * _DAY_S else f"expires in {left_s // 3600} hours"


def _ask(admin: Admin) -> bytes:
    try:
        answer = admin.ask("GET", "/admin/state")
    except AdminFault as fault:
        raise NotAsked(fault.message) from fault
    if answer.status != 200:
        raise NotAsked(f"{admin.url}: {answer.fault}")
    return answer.body
