"""A region with one disaggregated pool, for tests of a core: its workers, and a request's way through it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName, written_decode
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.vocabulary import (
    Connector,
    GatewayId,
    LegResult,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
    RequestId,
)
from gateway.features.section import text_of
from tests.support.core import EU, MODEL, MS, SECOND, US, Desk, of_kind, peer_spec, policy


def with_decode(pool: PoolSpec, decode: DecodeConfig) -> PoolSpec:
    """Pool whose description says how requests are admitted to decode workers."""
    others = tuple((key, text) for key, text in pool.features if key != "decode")
    return replace(pool, features=(*others, ("decode", text_of(decode))))


SHORTEST_QUEUE = DecodeConfig(DecodePolicyName.JOIN_SHORTEST_QUEUE)
POOL = with_decode(
    PoolSpec(PoolName("chat"), PoolKind.DISAGGREGATED, Connector.NIXL, decode_batch_max=2, lease_ns=30 * SECOND),
    SHORTEST_QUEUE,
)


def worker(name: str, role: ReplicaRole, group: str = "") -> ReplicaSpec:
    return ReplicaSpec(ReplicaId(name), US, (MODEL,), POOL.name, role=role, group=group)


def workers(prefill: int = 1, decode: int = 2) -> tuple[ReplicaSpec, ...]:
    readers = (worker(f"p{number}", ReplicaRole.PREFILL) for number in range(prefill))
    writers = (worker(f"d{number}", ReplicaRole.DECODE, "dp") for number in range(decode))
    return (*readers, *writers)


def pair(
    specs: Iterable[ReplicaSpec] = workers(),
    *,
    pool: PoolSpec = POOL,
    config: CoreConfig | None = None,
    margin: int = 32,
) -> Desk:
    """Core of a region with one disaggregated pool, whose workers have been probed idle."""
    desk = Desk(GatewayCore(GatewayId("gw-us"), US, seed=1))
    desk.tell(events.ConfigApplied(config or CoreConfig()))
    desk.tell(events.PolicyApplied(policy(US)))
    peers = (peer_spec("gw-eu", EU),)
    pool = with_decode(pool, replace(written_decode(pool), room_margin=margin))
    desk.tell(events.AssignmentApplied(1, tuple(specs), peers, pools=(pool,)))
    desk.probe()
    return desk


def resized(desk: Desk, pool: PoolSpec, specs: Iterable[ReplicaSpec], version: int = 2) -> list[Effect]:
    """Apply an assignment in which the pool has changed."""
    peers = (peer_spec("gw-eu", EU),)
    return desk.tell(events.AssignmentApplied(version, tuple(specs), peers, pools=(pool,)))


def decoding(effects: Iterable[Effect]) -> list[str]:
    """Requests for which a decode leg was ordered, in order."""
    return [name for name, role, _ in roles(effects) if role == "decode"]


def leg_ended(
    desk: Desk, request_id: str, leg: int, result: LegResult = LegResult.COMPLETED, *, attempt: int = 1, **more: object
) -> list[Effect]:
    return desk.tell(events.LegEnded(RequestId(request_id), attempt, leg, result, **more))  # type: ignore[arg-type]


def roles(effects: Iterable[Effect]) -> list[tuple[str, str, str]]:
    return [(each.request_id, each.role.value, each.target.id) for each in of_kind(StartLeg, effects)]


def books(desk: Desk) -> tuple[int, ...]:
    """Counts that must return to zero."""
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    figures = pool.tier.figures(desk.now_ns)
    retained = sum(state.retained for state in desk.core.replicas)
    in_flight = sum(state.in_flight for state in desk.core.replicas)
    return pool.in_prefill, figures.pooled, figures.dispatched, figures.running, retained, in_flight


def read(desk: Desk, request_id: str, prompt_tokens: int = 100) -> list[Effect]:
    """Have a request arrive and its prefill complete; a free decode worker takes over."""
    effects = desk.ask(request_id)
    effects += leg_ended(desk, request_id, 1, prompt_tokens=prompt_tokens)
    return effects + desk.wait(20 * MS)
