"""Load figures that this gateway reports to a controller: a few sums, for displays of the whole mesh. No decision
depends on them.
"""

from __future__ import annotations

from gateway.core.kernel.description import ReplicaCondition, condition_of
from gateway.core.kernel.state import GatewayState
from gateway.records.forward_rates import ForwardRates, Way
from mesh.control.vocabulary import ForwardsTo, GatewayLoad

FORWARDS_TOLD_MAX = 64
"""Peers reported, those with the most forwards."""


def load_of(core: GatewayState) -> GatewayLoad:
    return GatewayLoad(
        replicas=len(core.replicas),
        available=core.replicas.available.bit_count(),
        down=sum(condition_of(each) is ReplicaCondition.DOWN for each in core.replicas),
        running=sum(each.running + each.waiting for each in core.replicas),
        waiting=len(core.waiting),
        is_draining=core.draining,
        is_locked_down=core.forwarding_stop is not None,
    )


def forwards_told(core: GatewayState, rates: ForwardRates, now_ns: int) -> tuple[ForwardsTo, ...]:
    per_minute = rates.per_minute(now_ns)
    sent = [
        ForwardsTo(peer.spec.gateway_id, round(per_minute.get((peer.spec.gateway_id, Way.OUT), 0.0)), peer.in_flight)
        for peer in core.peers
    ]
    busy = [each for each in sent if each.per_minute or each.running]
    return tuple(sorted(busy, key=lambda each: (-each.per_minute, each.gateway_id))[:FORWARDS_TOLD_MAX])
