"""Preview of an order: a copy of the core handles it, and the differences are reported. A preview changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy

from msgspec import Struct
from msgspec.structs import replace

from controller.core.controller_core import ControllerCore
from controller.core.events import (
    ControllerConfigApplied,
    FreezeLifted,
    FreezeOrdered,
    NarrowingApplied,
    PolicyAccepted,
    RegistryApplied,
)
from controller.registry import Registry
from gateway.core.kernel.residency import ResidencyPolicy, may_accept, may_process
from gateway.core.vocabulary import GatewayId, RegionName, ReplicaId, TenantName
from mesh.naming.tree import Area

_MOVES_TOLD_MAX = 1000
_NO_TENANT = TenantName("")


class ReplicaMove(Struct, frozen=True):
    """A replica whose owner changes."""

    replica: ReplicaId
    before: GatewayId | None
    after: GatewayId | None
    why: str


class Stay(Struct, frozen=True):
    """Replicas of one home that no gateway may serve, or a replica that was moved to a gateway and may not go there."""

    home: GatewayId
    replicas: int
    why: str


class Unreachable(Struct, frozen=True):
    """Replicas that clients of one region reach at present, by DNS and the policies, and would not reach."""

    region: RegionName
    gateways: tuple[GatewayId, ...]
    """Gateways to which DNS would lead those clients."""
    home: GatewayId
    owner: GatewayId | None
    """Gateway that would serve the replicas."""
    replicas: int
    why: str


class StillLed(Struct, frozen=True):
    """A gateway that an order drains, and that clients or replicas cannot leave, since no other gateway may take
    them."""

    gateway: GatewayId
    regions: tuple[RegionName, ...]
    """Regions of which the name would still lead to it."""
    replicas: int
    """Replicas that it would still serve."""


class Preview(Struct, frozen=True):
    moves: tuple[ReplicaMove, ...]
    """Moves; only the first of them, where there are very many."""
    moves_in_all: int
    stays: tuple[Stay, ...]
    frozen: str
    """Reason why no replica would move yet; empty while the mesh is not frozen."""
    names: tuple[tuple[str, tuple[str, ...]], ...]
    """Gateways that the records would name, by region, where they change."""
    unreachable: tuple[Unreachable, ...] = ()
    still_led: tuple[StillLed, ...] = ()


def preview(
    core: ControllerCore,
    registry: Registry,
    changed: Registry,
    policies: Mapping[GatewayId, ResidencyPolicy],
    now_ns: int,
) -> Preview:
    """Compute the preview. `policies` are those that gateways would announce anew. Moves that would take several steps
    are reported as one."""
    copy = _copy_of(core)
    copy.handle(ControllerConfigApplied(replace(core.config, step_share=1.0)), now_ns)
    before, areas = dict(copy.owners), _areas(copy)
    if changed.freeze != registry.freeze:
        copy.handle(FreezeLifted() if changed.freeze is None else FreezeOrdered(changed.freeze.reason), now_ns)
    if changed.narrowings != registry.narrowings:
        copy.handle(NarrowingApplied(tuple(changed.narrowings.values())), now_ns)
    copy.handle(RegistryApplied(changed.gateway_entries, changed.replica_entries), now_ns)
    for gateway_id, policy in policies.items():
        copy.handle(PolicyAccepted(gateway_id, policy), now_ns)
    moved = [each for each in {**before, **copy.owners} if before.get(each) != copy.owners.get(each)]
    stays = tuple(Stay(home, count, why) for home, (count, why) in sorted(copy.orphans.items()))
    return Preview(
        tuple(_move(each, before, copy, changed) for each in sorted(moved)[:_MOVES_TOLD_MAX]),
        len(moved),
        (*stays, *_not_where_ordered(copy, changed)),
        copy.frozen,
        tuple(each for each in _areas(copy).items() if areas.get(each[0]) != each[1]),
        tuple(_unreachable(areas, core, copy)),
        () if copy.frozen else tuple(_still_led(registry, changed, copy)),
    )


def _copy_of(core: ControllerCore) -> ControllerCore:
    """Copy the core. Immutable values are shared: with ten thousand replicas the rest is small."""
    shared = (
        *core.gateways.values(),
        *core.replicas.values(),
        *core.policies.values(),
        *core.narrowings.values(),
    )
    return deepcopy(core, {id(each): each for each in shared})


def _areas(core: ControllerCore) -> dict[str, tuple[str, ...]]:
    """Return the nearest gateways of each region's clients. The further ones are for clients that reach none of these,
    and a client that does must not depend on them."""
    return {} if core.tree is None else {area.region: _nearest(area, core) for area in core.tree.areas}


def _nearest(area: Area, core: ControllerCore) -> tuple[GatewayId, ...]:
    regions = [core.gateways[each].place.region if each in core.gateways else None for each in area.gateways]
    return tuple(each for each, region in zip(area.gateways, regions, strict=True) if region == regions[0])


def _move(
    replica_id: ReplicaId, before: Mapping[ReplicaId, GatewayId], core: ControllerCore, registry: Registry
) -> ReplicaMove:
    after = core.owners.get(replica_id)
    return ReplicaMove(replica_id, before.get(replica_id), after, _why(replica_id, after, core, registry))


def _why(replica_id: ReplicaId, owner: GatewayId | None, core: ControllerCore, registry: Registry) -> str:
    replica = registry.replicas.get(replica_id)
    if replica is None or not replica.is_served:
        return "no gateway is to serve it"
    if owner is None:
        return core.orphans.get(replica.home, (0, "no gateway may serve it"))[1]
    if owner == replica.home:
        return "it is at home there"
    policy = core.effective_policy(replica.home_place.region)
    said = policy_says(policy, owner, replica.home_place.region, core)
    return f"it was moved there; {said}" if owner == replica.pinned_to else f"the nearest that may have it; {said}"


def policy_says(policy: ResidencyPolicy | None, owner: GatewayId, region: RegionName, core: ControllerCore) -> str:
    """Say which policy allows or forbids an adopter, and by which rule."""
    if policy is None:
        return f"the policy of {region} is not known"
    return f"policy {policy.digest} of {region}: {may_accept(policy, core.gateways[owner].place).why}"


def _unreachable(
    areas: Mapping[str, tuple[str, ...]], before: ControllerCore, after: ControllerCore
) -> Iterator[Unreachable]:
    """Yield the losses of clients whose tenants have no rules of their own. Replicas with one home and one owner go
    together."""
    groups: Counter[tuple[GatewayId, GatewayId | None, GatewayId | None]] = Counter(
        (each.home, before.owners.get(each.replica_id), after.owners.get(each.replica_id))
        for each in before.replicas.values()
    )
    for region, gateways in _areas(after).items():
        named = tuple(map(GatewayId, gateways))
        for (home, was, owner), count in groups.items():
            if all(_why_not(each, home, was, before) for each in map(GatewayId, areas.get(region, ()))):
                continue
            faults = [_why_not(each, home, owner, after) for each in named]
            if all(faults):
                why = faults[0] if faults else "the name leads them nowhere"
                yield Unreachable(RegionName(region), named, home, owner, count, why)


def _still_led(registry: Registry, changed: Registry, after: ControllerCore) -> Iterator[StillLed]:
    for gateway_id, gateway in changed.gateways.items():
        before = registry.gateways.get(gateway_id)
        if not gateway.is_drained or before is None or before.is_drained:
            continue
        regions = tuple(RegionName(region) for region, led in _areas(after).items() if gateway_id in led)
        replicas = sum(owner == gateway_id for owner in after.owners.values())
        if regions or replicas:
            yield StillLed(gateway_id, regions, replicas)


def _why_not(entrance: GatewayId, home: GatewayId, owner: GatewayId | None, core: ControllerCore) -> str:
    """Reason why a request that arrives at `entrance` cannot run on that home's replicas as their owner serves them;
    empty: it can."""
    if owner is None:
        return "no gateway serves them"
    if entrance not in core.gateways or owner not in core.gateways or home not in core.gateways:
        return "their gateway is not known any more"
    origin = core.gateways[entrance].place
    leaves = core.effective_policy(origin.region)
    for place in dict.fromkeys((core.gateways[owner].place, core.gateways[home].place)):
        if place == origin:
            continue
        enters = core.effective_policy(place.region)
        if leaves is None or enters is None:
            return f"the policy of {origin.region if leaves is None else place.region} is not known"
        for policy, verdict in ((leaves, may_process(leaves, _NO_TENANT, place)), (enters, may_accept(enters, origin))):
            if not verdict.allowed:
                return f"policy {policy.digest} of {policy.place.region}: {verdict.why}"
    return ""


def _not_where_ordered(core: ControllerCore, registry: Registry) -> tuple[Stay, ...]:
    stays = []
    for replica in registry.replicas.values():
        to = replica.pinned_to
        if to is None or not replica.is_served or core.owners.get(replica.replica_id) == to or to not in core.gateways:
            continue
        policy = core.effective_policy(replica.home_place.region)
        is_allowed = policy is not None and may_accept(policy, core.gateways[to].place).allowed
        because = f"{to} is {core.health[to].condition}"
        why = because if is_allowed else policy_says(policy, to, replica.home_place.region, core)
        stays.append(Stay(replica.home, 1, f"{replica.replica_id} does not go to {to}: {why}"))
    return tuple(stays)
