"""Sample a gateway's core: running, waiting and forwarded requests, by pool. Sampling changes nothing, and costs
nothing between samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gateway.core.features.scaling.vocabulary import PoolKey, Sample, Way
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import RequestState
from gateway.core.kernel.residency import may_accept
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import ModelName, Place, PlaceRule, RegionName, ReplicaRole, ServiceClass, Standing


def samples_of(
    core: GatewayState, pools: Iterable[PoolKey], classes: Collection[ServiceClass] = tuple(ServiceClass)
) -> dict[PoolKey, Sample]:
    """Samples over requests of these classes. Only unified replicas belong to a pool here; prefill and decode workers
    are not scaled this way."""
    counts = {key: Sample() for key in pools}
    _count_replicas(core, counts)
    by_model = key_by_model(core, counts)
    places = [peer.spec.place for peer in core.peers if peer.spec.place.region != core.place.region]
    may_leave: dict[PlaceRule, bool] = {}
    for request in core.requests.values():
        key = _key_of(request, counts, by_model) if request.profile.service_class in classes else None
        if key is not None:
            _count(request, counts[key], core.place, places, may_leave)
    return counts


def key_by_replica(core: GatewayState, pools: Iterable[PoolKey]) -> dict[str, PoolKey]:
    """Pool of each replica of this gateway that belongs to one of `pools`."""
    keys = dict.fromkeys(pools)
    found = ((state.target.id, _key_of_replica(state, keys)) for state in core.replicas)
    return {target_id: key for target_id, key in found if key is not None}


def key_by_model(core: GatewayState, pools: Iterable[PoolKey]) -> dict[ModelName, PoolKey]:
    """Pool whose demand a request counts as when no replica here runs it; of several pools with its model, the
    first."""
    keys = dict.fromkeys(pools)
    by_model: dict[ModelName, PoolKey] = {}
    for key in keys:
        by_model.setdefault(key.model, key)
    for state in core.replicas:
        found = _key_of_replica(state, keys)
        if found is not None:
            for model in state.spec.models:
                by_model.setdefault(model, found)
    return by_model


def ways_of(core: GatewayState) -> tuple[Way, ...]:
    """Regions that this gateway's policy lets its requests go to and that have an available peer, with the round
    trip."""
    if core.draining or core.forwarding_stop is not None or core.policy.closed_reason:
        return ()
    near: dict[RegionName, int] = {}
    for peer in core.peers:
        place, observation = peer.spec.place, peer.observation
        if place.region == core.place.region or peer.standing is not Standing.AVAILABLE or observation is None:
            continue
        if core.policy.process.allows(place):
            near[place.region] = min(observation.rtt_ns, near.get(place.region, observation.rtt_ns))
    return tuple(Way(region, rtt_ns) for region, rtt_ns in near.items())


def accepts_of(core: GatewayState) -> tuple[RegionName, ...]:
    """Regions of peers whose requests are accepted here."""
    if core.draining or core.forwarding_stop is not None:
        return ()
    places = {peer.spec.place: None for peer in core.peers if peer.spec.place.region != core.place.region}
    return tuple(dict.fromkeys(place.region for place in places if may_accept(core.policy, place).allowed))


def _count_replicas(core: GatewayState, counts: Mapping[PoolKey, Sample]) -> None:
    for state in core.replicas:
        key = _key_of_replica(state, counts)
        stays = state.healthy and state.leave_by_ns is None
        if key is not None and stays and state.spec.place.region == core.place.region:
            counts[key].ready += 1


def _key_of_replica(state: ReplicaState, pools: Mapping[PoolKey, object]) -> PoolKey | None:
    spec = state.spec
    if spec.role is not ReplicaRole.UNIFIED:
        return None
    return next((key for key in pools if key.pool == spec.pool and key.model in spec.models), None)


def _key_of(
    request: RequestState, pools: Mapping[PoolKey, object], by_model: Mapping[ModelName, PoolKey]
) -> PoolKey | None:
    """Pool of a request: that of the replica that runs it, else the pool its budget is meant for, else by its model."""
    attempt = request.attempt
    if attempt is not None:
        for leg in attempt.legs.values():
            if isinstance(leg.state, ReplicaState):
                return _key_of_replica(leg.state, pools)
    model, fit = request.profile.model, request.request_class.fit
    if fit is not None and fit.preferred:
        for key in pools:
            if key.pool == fit.preferred[0] and by_model.get(model, key).model == key.model:
                return key
    return by_model.get(model)


def _count(
    request: RequestState, sample: Sample, home: Place, places: list[Place], may_leave: dict[PlaceRule, bool]
) -> None:
    attempt = request.attempt
    legs = () if attempt is None else tuple(attempt.legs.values())
    if request.origin_gateway_id is not None:
        sample.taken += bool(legs) and request.stamp.origin.region != home.region
        return
    if attempt is None:
        sample.waiting += 1
    else:
        sample.running += 1
        sample.sent += any(
            not isinstance(leg.state, ReplicaState) and leg.state.spec.place.region != home.region for leg in legs
        )
    rule = request.request_class.rule
    leaves = may_leave.get(rule)
    if leaves is None:
        leaves = may_leave[rule] = any(rule.allows(place) for place in places)
    sample.pinned += not leaves
