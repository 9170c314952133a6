"""Judges a gateway's state: the problems in it, worst first. `nightside gateway status` prints them, and the page
shows them first.

It reads the contents of `/admin/state`, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.core.vocabulary import Standing
from gateway.features.status import StatusView, because
from gateway.features.status_views import VIEWS
from mesh.problems import Problem, RefusedFiles, Runbook, problems_of_files

_DAY_S = 86_400
_DOWN = frozenset({Standing.UNHEALTHY, Standing.STALE})
_SICK = frozenset({*_DOWN, Standing.LOST, Standing.DISTRUSTED, Standing.BREAKER})
"""Standings that do not pass with the next request that ends."""
_IDENTITIES_NAMED_MAX = 3


class PolicyState(msgspec.Struct, frozen=True):
    digest: str
    closed_reason: str


class QueueState(msgspec.Struct, frozen=True):
    length: int
    by_model: dict[str, int]


class ReplicaStatus(msgspec.Struct, frozen=True):
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
    identities: dict[str, str] = {}
    """Known identity of each model."""


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
    replicas: list[ReplicaStatus]
    peers: list[PeerView]
    certificates: dict[str, CertificateView]
    journal_fault: str
    audit_fault: str
    refused_files: tuple[RefusedFiles, ...] = ()
    control: ControlView | None = None
    """Controller link; None where no controllers are named."""
    taken_over_from: TakenOverView | None = None
    """Take-over; None where the process started by itself."""
    views: tuple[StatusView, ...] = ()
    """Parts of the features, as far as the state has any."""


def read_status(state: bytes) -> Status:
    """Read a gateway's state, with the parts of its features. Raises msgspec.DecodeError."""
    seen = msgspec.json.decode(state, type=Status)
    parts = msgspec.json.decode(state, type=dict[str, msgspec.Raw])
    shown = {key: view for key, view in VIEWS.items() if parts.get(key) not in (None, b"null")}
    views = [msgspec.json.decode(parts[key], type=view) for key, view in shown.items()]
    return msgspec.structs.replace(seen, views=tuple(views))


def problems(seen: Status) -> Iterator[Problem]:
    """Problems that an operator should solve, worst first."""
    if seen.not_ready_reason:
        runbook = "" if seen.draining else Runbook.NOT_READY
        yield Problem(f"not ready: {seen.not_ready_reason}", "not_ready", runbook=runbook)
    yield from _of_replicas(seen.replicas)
    yield from _of_identities(seen.replicas)
    for view in seen.views:
        yield from view.grave_problems()
    if seen.policy.closed_reason and seen.peers:
        text = f"nothing is forwarded: {seen.policy.closed_reason}"
        yield Problem(text, "policy_closed", runbook=Runbook.POLICY_CLOSED)
    for peer in seen.peers:
        if peer.standing in _SICK:
            text = f"peer {peer.id} is {peer.standing}{because(peer.detail)}"
            yield Problem(text, "peer_unusable", peer.id, Runbook.PEER_UNUSABLE)
    yield from problems_of_files(seen.refused_files, Runbook.RELOAD_REFUSED)
    for role, certificate in seen.certificates.items():
        if certificate.expires_soon:
            runbook = Runbook.CERTIFICATE_EXPIRES if certificate.expires_in_s <= 0 else Runbook.CERTIFICATE_EXPIRES_SOON
            text = f"the certificate for {role} {expiry(certificate.expires_in_s)}"
            yield Problem(text, "certificate_expires", role, runbook)
    if seen.control is not None:
        yield from _of_control(seen.control)
    for view in seen.views:
        yield from view.problems()
    if seen.journal_fault:
        yield Problem(f"the journal has stopped: {seen.journal_fault}", "journal_stopped", "", Runbook.JOURNAL_STOPPED)
    if seen.audit_fault:
        text = f"the audit record cannot be written: {seen.audit_fault}"
        yield Problem(text, "audit_failing", runbook=Runbook.AUDIT_FAILING)


def no_replica_usable(seen: Status) -> bool:
    return _none_usable(seen.replicas)


def _none_usable(replicas: list[ReplicaStatus]) -> bool:
    return bool(replicas) and all(each.standing in _SICK for each in replicas)


def _of_replicas(replicas: list[ReplicaStatus]) -> Iterator[Problem]:
    if len(replicas) == 1 and replicas[0].standing in _SICK:
        (only,) = replicas
        text = f"no replica can be used: {only.id} is {only.standing}{because(only.detail)}"
        yield Problem(text, "no_replica_usable", only.id, Runbook.ALL_REPLICAS_DOWN)
        return
    if _none_usable(replicas):
        text = f"no replica can be used: all {len(replicas)} fail"
        yield Problem(text, "no_replica_usable", runbook=Runbook.ALL_REPLICAS_DOWN)
    for each in replicas:
        if each.standing in _SICK:
            runbook = Runbook.REPLICA_DOWN if each.standing in _DOWN else Runbook.REPLICA_FAILS
            text = f"replica {each.id} is {each.standing}{because(each.detail)}"
            yield Problem(text, "replica_unusable", each.id, runbook)


def _of_identities(replicas: list[ReplicaStatus]) -> Iterator[Problem]:
    """Models that engines serve with different identities: none of them takes over a broken answer of another."""
    found: dict[str, dict[str, str]] = {}
    for each in replicas:
        for model, identity in each.identities.items():
            found.setdefault(model, {}).setdefault(identity, each.id)
    for model, told in found.items():
        if len(told) > 1:
            named = [f"{identity} ({replica_id})" for identity, replica_id in told.items()]
            more = len(named) - _IDENTITIES_NAMED_MAX
            rest = f", and {more} more" if more > 0 else ""
            text = f"{model} is not the same model everywhere: {', '.join(named[:_IDENTITIES_NAMED_MAX])}{rest}"
            yield Problem(text, "model_identities_differ", model, Runbook.MODEL_IDENTITY_MISMATCH)


def _of_control(control: ControlView) -> Iterator[Problem]:
    if not control.attached:
        text = f"no controller is attached{because(control.last_loss)}"
        yield Problem(text, "no_controller", runbook=Runbook.NO_CONTROLLER)
    if control.last_rejection:
        text = f"the controller's last snapshot was rejected: {control.last_rejection}"
        yield Problem(text, "snapshot_rejected", runbook=Runbook.SNAPSHOT_REJECTED)
    for replica_id, why in control.left_out.items():
        text = f"replica {replica_id} is granted and left out: {why}"
        yield Problem(text, "replica_left_out", replica_id, Runbook.REPLICAS_LEFT_OUT)
    if control.not_kept_reason:
        text = f"the controller's last snapshot is not kept for a restart: {control.not_kept_reason}"
        yield Problem(text, "snapshot_not_kept", runbook=Runbook.SNAPSHOT_NOT_KEPT)


def expiry(left_s: int) -> str:
    """Validity of a certificate in words, from the seconds that are left."""
    if left_s <= 0:
        return "has expired"
    return f"expires in {left_s // _DAY_S} days" if left_s >= 2 * _DAY_S else f"expires in {left_s // 3600} hours"
