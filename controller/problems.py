"""Judges a controller's state: the problems in it that need an operator, worst first. `nightside ctl status` prints
them, and the page shows them first.

It reads the content of `/admin/state`, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from controller.core.vocabulary import Condition
from mesh.problems import Problem, RefusedFiles, Runbook, problems_of_files


class WantedView(msgspec.Struct, frozen=True):
    model: str
    pool: str
    replicas: int
    ready: int
    reason: str


class GatewayView(msgspec.Struct, frozen=True):
    id: str
    region: str
    jurisdiction: str
    condition: str
    detail: str
    drained: bool
    attached: bool
    replicas_owned: int
    taken: tuple[int, int] | None = None
    pushed: tuple[int, int] | None = None
    rejected: str = ""
    open_requests: int = 0
    replicas_served: int = 0
    """Replicas that the gateway itself reports, adopted ones too; `replicas_down` of them do not answer it."""
    replicas_down: int = 0
    wanted: list[WantedView] = []
    """Replicas wanted in its region, where the gateway says how many."""


class ReplicaView(msgspec.Struct, frozen=True):
    id: str
    home: str
    owner: str
    pinned_to: str
    drained: bool
    removed: bool


class OrphansView(msgspec.Struct, frozen=True):
    home: str
    replicas: int
    reason: str


class NameView(msgspec.Struct, frozen=True):
    region: str
    gateways: list[str]
    why: str


class RecordsView(msgspec.Struct, frozen=True):
    version: int
    fault: str
    settle_fault: str


class State(msgspec.Struct, frozen=True):
    """The part of `/admin/state` that is shown."""

    controller: str
    term: int
    version: int
    not_ready_reason: str
    frozen: str
    store_fault: str
    history_fault: str
    gateways: list[GatewayView]
    replicas: list[ReplicaView]
    orphans: list[OrphansView]
    narrowings: dict[str, str]
    names: list[NameView]
    faults: list[str]
    refused_files: tuple[RefusedFiles, ...] = ()
    published_records: RecordsView | None = None
    """State of published records, where the controller publishes them."""


def problems(seen: State) -> Iterator[Problem]:
    """Problems that need an operator, worst first."""
    if seen.not_ready_reason:
        yield Problem(f"not ready: {seen.not_ready_reason}", "not_ready")
    if seen.store_fault:
        text = f"the store cannot be written, and nothing new is assigned: {seen.store_fault}"
        yield Problem(text, "store_failing", runbook=Runbook.CONTROLLER_STORE_FAILING)
    if seen.frozen:
        text = f"frozen, automatic failover and reassignment are suspended: {seen.frozen}"
        yield Problem(text, "frozen", runbook=Runbook.CONTROLLER_FROZEN)
    if seen.published_records is not None:
        yield from _of_records(seen.published_records)
    for orphans in seen.orphans:
        text = f"no gateway may serve {orphans.replicas} replicas of {orphans.home}: {orphans.reason}"
        yield Problem(text, "replicas_orphaned", orphans.home, Runbook.REPLICAS_ORPHANED)
    for gateway in seen.gateways:
        yield from _of_gateway(gateway)
    for name in seen.names:
        if name.why:
            text = f"DNS has no gateway for clients in {name.region}: {name.why}"
            yield Problem(text, "name_leads_nowhere", name.region, Runbook.MESH_GATEWAY_DOWN)
    for fault in seen.faults:
        yield Problem(fault, "registration_refused", fault, Runbook.PLACE_CLAIM_REFUSED)
    yield from problems_of_files(seen.refused_files, Runbook.CONTROLLER_RELOAD_REFUSED)
    if seen.history_fault:
        yield Problem(f"the operator audit log cannot be kept: {seen.history_fault}", "audit_log_failing")


def _of_gateway(gateway: GatewayView) -> Iterator[Problem]:
    if gateway.condition != Condition.UP:
        text = f"gateway {gateway.id} is {gateway.condition}{_because(gateway.detail)}"
        yield Problem(text, "gateway_down", gateway.id, Runbook.MESH_GATEWAY_DOWN)
    elif not gateway.attached:
        text = f"gateway {gateway.id} is not attached{_because(gateway.detail)}"
        yield Problem(text, "gateway_not_attached", gateway.id, Runbook.NO_CONTROLLER)
    if gateway.replicas_down and gateway.replicas_down == gateway.replicas_served:
        figures = f"{gateway.replicas_down} of {gateway.replicas_served} are down"
        text = f"gateway {gateway.id} has no replica that answers: {figures}"
        yield Problem(text, "all_replicas_down", gateway.id, Runbook.ALL_REPLICAS_DOWN)
    if gateway.rejected:
        text = f"gateway {gateway.id} rejected a snapshot: {gateway.rejected}"
        yield Problem(text, "snapshot_rejected", gateway.id, Runbook.SNAPSHOT_REJECTED)


def _of_records(records: RecordsView) -> Iterator[Problem]:
    if records.fault:
        text = f"the newest records are not published: {records.fault}"
        yield Problem(text, "records_not_published", runbook=Runbook.RECORDS_NOT_PUBLISHED)
    if records.settle_fault:
        text = f"the published records are not as they should be: {records.settle_fault}"
        yield Problem(text, "records_changed_by_others", runbook=Runbook.RECORDS_CHANGED_BY_OTHERS)


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""
