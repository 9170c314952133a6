"""A region whose pools differ in token budgets, for tests of a core: by default a short and a long one."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.effects import Effect
from gateway.core.vocabulary import (
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelQueue,
    PeerObservation,
    PeerSpec,
    Place,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaSpec,
    RequestProfile,
)
from tests.support.core import LAYERED, MODEL, MS, SECOND, US, Desk, policy, profile, under

SHORT, LONG = PoolName("short"), PoolName("long")
SHORT_POOL = PoolSpec(SHORT, context_tokens_max=8192, threshold_tokens=8000)
LONG_POOL = PoolSpec(LONG, context_tokens_max=65_536)
POOLS = (SHORT_POOL, LONG_POOL)


def member(name: str, pool: PoolName, place: Place = US) -> ReplicaSpec:
    return ReplicaSpec(ReplicaId(name), place, (MODEL,), pool)


REPLICAS = (member("s0", SHORT), member("s1", SHORT), member("l0", LONG))


def pooled(
    replicas: Iterable[ReplicaSpec] = REPLICAS,
    pools: Iterable[PoolSpec] = POOLS,
    *,
    peers: Iterable[PeerSpec] = (),
    placement: PlacementPolicy = LAYERED,
    config: CoreConfig | None = None,
) -> Desk:
    desk = Desk(GatewayCore(GatewayId("gw-us"), US, seed=1))
    desk.tell(events.ConfigApplied(under(placement, config)))
    desk.tell(events.PolicyApplied(policy(US)))
    assigned(desk, replicas, pools, peers=peers)
    desk.probe()
    return desk


def assigned(
    desk: Desk,
    replicas: Iterable[ReplicaSpec],
    pools: Iterable[PoolSpec],
    *,
    peers: Iterable[PeerSpec] = (),
    version: int = 1,
) -> list[Effect]:
    return desk.tell(events.AssignmentApplied(version, tuple(replicas), tuple(peers), pools=tuple(pools)))


def asking(request_id: str, prompt_tokens: int, output_tokens: int | None = 100, **more: object) -> RequestProfile:
    """Request with four bytes per token, which is the ratio assumed before any engine has reported token counts."""
    asked = profile(request_id, **more)  # type: ignore[arg-type]
    return replace(asked, text_bytes=4 * prompt_tokens, output_tokens_max=output_tokens)


def ask(
    desk: Desk, request_id: str, prompt_tokens: int, output_tokens: int | None = 100, **more: object
) -> list[Effect]:
    asked = asking(request_id, prompt_tokens, output_tokens, **more)
    return desk.tell(events.RequestArrived(asked, desk.now_ns + 600 * SECOND))


def hear(
    desk: Desk,
    name: str,
    place: Place,
    pools: dict[PoolSpec, int],
    *,
    queues: dict[PoolName, int] | None = None,
    sequence: int = 1,
) -> list[Effect]:
    """Report a heartbeat of a peer with these pools and their numbers of available replicas."""
    capacities = tuple(
        ModelCapacity(
            MODEL,
            pool.name,
            place,
            max(available, 1),
            available,
            context_tokens_max=pool.context_tokens_max,
            threshold_tokens=pool.threshold_tokens,
            room=available,
        )
        for pool, available in pools.items()
    )
    lengths = tuple(ModelQueue(MODEL, length, pool) for pool, length in (queues or {}).items())
    whole = ModelQueue(MODEL, sum((queues or {}).values()))
    report = LoadReport(GatewayId(name), place, sequence, True, 1, "digest", capacities, (*lengths, whole))
    return desk.tell(events.PeersObserved((PeerObservation(report, desk.now_ns, desk.now_ns, 10 * MS, 10 * MS),)))
