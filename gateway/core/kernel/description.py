"""Snapshot of a gateway's state in words and numbers, for operators and the metrics page. It decides nothing and holds
no request content."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.kernel.goodput import Promise
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.peers import Peers, PeerState
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.state import GatewayState
from gateway.core.placement.prefix_index import PrefixIndex
from gateway.core.vocabulary import (
    GatewayId,
    ModelName,
    ReplicaId,
    ServiceClass,
    Standing,
    TenantName,
    Word,
)


class ReplicaCondition(Word):
    """Condition of a replica: its standing, reduced to what an operator has to tell apart."""

    AVAILABLE = "available"
    FULL = "full"
    """The replica works, and has all the requests that it may be given."""
    RECOVERING = "recovering"
    """The replica answers probes, but requests failed there: it rests, its breaker is open, or its ramp allows few."""
    LEAVING = "leaving"
    """The replica was announced to be gone by a known time: what runs there ends, and it is sent nothing more."""
    DOWN = "down"
    """The replica does not answer probes, or reports itself unhealthy."""


_CONDITIONS = {
    Standing.AVAILABLE: ReplicaCondition.AVAILABLE,
    Standing.PENDING: ReplicaCondition.FULL,
    Standing.CREDIT: ReplicaCondition.FULL,
    Standing.OUTSTANDING: ReplicaCondition.FULL,
    Standing.KV_FULL: ReplicaCondition.FULL,
    Standing.DECODE_FULL: ReplicaCondition.FULL,
    Standing.LEAVING: ReplicaCondition.LEAVING,
    Standing.UNHEALTHY: ReplicaCondition.DOWN,
    Standing.STALE: ReplicaCondition.DOWN,
}


def condition_of(state: ReplicaState) -> ReplicaCondition:
    return _CONDITIONS.get(state.standing, ReplicaCondition.RECOVERING)


class CoreGauges(Struct, frozen=True):
    """Gauges for the metrics page."""

    queue_length: int
    requests: int
    attempts: int
    prefix_index_bytes: int
    prefix_index_blocks: int
    replicas: int
    replicas_available: int
    peers: int
    peers_usable: int
    replica_conditions: dict[ReplicaId, ReplicaCondition]
    probe_age_ns: dict[ReplicaId, int]
    """Time since the last probe that found each replica healthy was sent, or since the replica was assigned if none
    did."""
    heartbeat_age_ns: dict[GatewayId, int]
    queue_lengths: dict[ModelName, int]
    in_flight: dict[ReplicaId, int]
    """Legs of this gateway at each replica."""
    pending: dict[ReplicaId, int]
    """Requests that each replica's engine has accepted and not begun, from all senders."""
    held: dict[ReplicaId, int]
    """Requests held here for each replica."""
    rooms: dict[ReplicaId, int]
    """Requests that each replica could begin at once."""


class SharingFigures(Struct, frozen=True):
    """Figures of fair sharing and service classes, for the metrics page."""

    promises: dict[tuple[ServiceClass, Promise], int]
    waiting: dict[ServiceClass, int]
    """Waiting requests by the service class that they are served as."""
    waiting_of: dict[TenantName, int]
    drains: dict[ModelName, float]
    """Requests a second that leave the queue of each model, where the rate is known."""
    tenants: int
    forgotten: int
    leaving_room: int
    """Tenants with waiting requests that run more than their share and leave room for others."""
    interrupted: dict[ServiceClass, int]
    """Attempts that were ended so that an interactive request has the slot."""


def sharing_of(core: GatewayState, now_ns: int) -> SharingFigures:
    lines = core.waiting.order.figures()
    waiting = dict.fromkeys(ServiceClass, 0)
    for request_class, queue in core.waiting.queues():
        waiting[request_class.service_class] += len(queue)
    return SharingFigures(
        dict(core.goodput.counts),
        waiting,
        lines.waiting,
        core.drain_rates.rates(now_ns),
        lines.known,
        lines.forgotten,
        lines.leaving_room,
        dict(core.goodput.interrupted),
    )


def gauges_of(core: GatewayState, now_ns: int) -> CoreGauges:
    return CoreGauges(
        queue_length=len(core.waiting),
        requests=len(core.requests),
        attempts=sum(request.attempt is not None for request in core.requests.values()),
        prefix_index_bytes=core.placer.replica_index.size_bytes + core.placer.peer_index.size_bytes,
        prefix_index_blocks=core.placer.replica_index.blocks + core.placer.peer_index.blocks,
        replicas=len(core.replicas),
        replicas_available=core.replicas.available.bit_count(),
        peers=len(core.peers),
        peers_usable=core.peers.usable.bit_count(),
        replica_conditions={state.spec.replica_id: condition_of(state) for state in core.replicas},
        probe_age_ns={
            state.spec.replica_id: now_ns - (state.assigned_ns if state.answered_ns is None else state.answered_ns)
            for state in core.replicas
        },
        heartbeat_age_ns={
            state.spec.gateway_id: now_ns - state.observation.generated_ns
            for state in core.peers
            if state.observation is not None
        },
        queue_lengths=core.waiting.lengths(),
        in_flight={state.spec.replica_id: state.in_flight for state in core.replicas},
        pending={state.spec.replica_id: state.waiting for state in core.replicas},
        held={state.spec.replica_id: core.waiting.held_for(state.slot) for state in core.replicas},
        rooms={state.spec.replica_id: state.room for state in core.replicas},
    )


def describe(core: Kernel, now_ns: int) -> dict[str, object]:
    """Whole state of a gateway as JSON-ready values."""
    return {
        "gateway": core.gateway_id,
        "region": core.place.region,
        "jurisdiction": core.place.jurisdiction,
        "draining": core.draining,
        "policy": {"digest": core.policy.digest, "closed_reason": core.policy.closed_reason},
        "assignment_version": core.assignment_version,
        "control_version": {"term": core.control.term, "version": core.control.version},
        "placement_policy": core.config.placement.policy,
        "pushing": core.config.pushing.mode,
        "overflow": core.config.placement.overflow,
        "overflow_by_model": dict(core.config.placement.overflow_by_model),
        "requests": len(core.requests),
        "queue": {"length": len(core.waiting), "by_model": core.waiting.lengths()},
        "replicas": [_describe_replica(state, core, now_ns) for state in core.replicas],
        "peers": [_describe_peer(state, core.peers, now_ns) for state in core.peers],
        "pools": _describe_pools(core),
        "prefix_index": {
            "replicas": _describe_index(core.placer.replica_index),
            "peers": _describe_index(core.placer.peer_index),
        },
        **{name: part for feature in core.features for name, part in feature.describe(now_ns).items()},
    }


def _describe_replica(state: ReplicaState, core: GatewayState, now_ns: int) -> dict[str, object]:
    return {
        "id": state.spec.replica_id,
        "region": state.spec.place.region,
        "pool": state.spec.pool,
        "role": state.spec.role,
        "group": state.spec.group,
        "retained": state.retained,
        "models": list(state.spec.models),
        "identities": {model: told for model in state.spec.models if (told := state.spec.identity_of(model))},
        "available": bool(core.replicas.available >> state.slot & 1),
        "standing": state.standing,
        "healthy": state.healthy,
        "detail": state.detail,
        "running": state.running,
        "pending": state.waiting,
        "kv_usage": state.kv_usage,
        "kv_tokens": state.kv_tokens,
        "slots": state.slots.total,
        "slots_learnt": state.slots.learnt,
        "room": state.room,
        "context_tokens_max": core.replicas.context_of(state),
        "context_tokens_learnt": state.context_seen,
        "held": core.waiting.held_for(state.slot),
        "in_flight": state.in_flight,
        "unreflected": len(state.unreflected),
        "breaker": state.breaker.state,
        "ramp_limit": state.ramp.limit,
        "probe_age_ms": None if state.answered_ns is None else (now_ns - state.answered_ns) / 1e6,
    }


def _describe_pools(core: GatewayState) -> list[dict[str, object]]:
    """Pools whose requests are sorted by token budget, one entry per model and pool."""
    told = {(each.model, each.pool): each for each in core.replicas.capacities() if core.has_thresholds(each.model)}
    return [
        {
            "model": model,
            "pool": pool,
            "context_tokens_max": capacity.context_tokens_max,
            "threshold_tokens": capacity.threshold_tokens,
            "queue_length": core.waiting.pool_length(model, pool),
            "preemptions": core.replicas.preempted.get(pool, 0),
        }
        for (model, pool), capacity in told.items()
    ]


def _describe_peer(state: PeerState, peers: Peers, now_ns: int) -> dict[str, object]:
    observation = state.observation
    return {
        "id": state.spec.gateway_id,
        "region": state.spec.place.region,
        "jurisdiction": state.spec.place.jurisdiction,
        "usable": bool(peers.usable >> state.slot & 1),
        "standing": state.standing,
        "lost": not state.healthy,
        "detail": state.detail,
        "accepting": observation is not None and observation.report.accepting,
        "in_flight": state.in_flight,
        "unreflected": len(state.unreflected),
        "breaker": state.breaker.state,
        "rtt_ms": None if observation is None else observation.rtt_ns / 1e6,
        "heartbeat_age_ms": None if observation is None else (now_ns - observation.generated_ns) / 1e6,
        "models": []
        if observation is None
        else [
            {
                "model": capacity.model,
                "pool": capacity.pool,
                "region": capacity.place.region,
                "replicas": capacity.replicas,
                "available": capacity.available,
                "load": capacity.load,
                "room": capacity.room,
                "release_ms": capacity.release_ns / 1e6,
                "queue_length": state.queue_lengths.get(capacity.model, 0),
                "context_tokens_max": capacity.context_tokens_max,
                "threshold_tokens": capacity.threshold_tokens,
                "identity": capacity.identity,
            }
            for capacity in observation.report.capacities
        ],
    }


def _describe_index(index: PrefixIndex) -> dict[str, int]:
    return {"bytes": index.size_bytes, "blocks": index.blocks, "records": index.records, "nodes": index.nodes}
