"""Load figures that this gateway reports to a controller: a few sums, for displays of the whole mesh. No decision
depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gateway.core.kernel.description import ReplicaCondition, condition_of
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.state import GatewayState
from gateway.records.forward_rates import ForwardDirection, ForwardRates
from mesh.control.vocabulary import ForwardsTo, GatewayLoad

FORWARDS_TOLD_MAX = 64
"""Peers reported, those with the most forwards."""


def load_of(core: GatewayState) -> GatewayLoad:
    use = engine_use(core.replicas)
    return GatewayLoad(
        replicas=len(core.replicas),
        available=core.replicas.available.bit_count(),
        down=sum(condition_of(each) is ReplicaCondition.DOWN for each in core.replicas),
        running=sum(each.running + each.waiting for each in core.replicas),
        waiting=len(core.waiting),
        is_draining=core.draining,
        is_locked_down=core.forwarding_stop is not None,
        slots=use.slots,
        slots_used=use.slots_used,
        kv_usage=use.kv_usage,
    )


class EngineUse(Struct, frozen=True):
    """Use of several replicas' engines, as their last probes found it."""

    slots: int
    """Requests that they run at once, of those for which that is known."""
    slots_used: int
    kv_usage: float | None
    """Mean share of the KV cache in use, from 0 to 1; None where none answers."""


def engine_use(replicas: Iterable[ReplicaState]) -> EngineUse:
    """Use of the replicas that answer their probes."""
    answering = [each for each in replicas if condition_of(each) is not ReplicaCondition.DOWN]
    slots = [(each.slots.total, min(each.running, each.slots.total)) for each in answering]
    kv_usage = sum(each.kv_usage for each in answering) / len(answering) if answering else None
    return EngineUse(sum(total for total, _ in slots), sum(used for _, used in slots), kv_usage)


def forwards_told(core: GatewayState, rates: ForwardRates, now_ns: int) -> tuple[ForwardsTo, ...]:
    per_minute = rates.per_minute(now_ns)
    sent = [
        ForwardsTo(
            peer.spec.gateway_id,
            round(per_minute.get((peer.spec.gateway_id, ForwardDirection.OUT), 0.0)),
            peer.in_flight,
        )
        for peer in core.peers
    ]
    busy = [each for each in sent if each.per_minute or each.running]
    return tuple(sorted(busy, key=lambda each: (-each.per_minute, each.gateway_id))[:FORWARDS_TOLD_MAX])
