"""Records of the mesh's DNS name for clients of each region: the nearest living gateways to which they may be sent.

DNS is a hint and enforces nothing: each gateway checks admission itself. Still, no record sends a client of a closed
jurisdiction out of it, nor to a region where its own region's policy forbids the processing of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.vocabulary import GatewayEntry
from gateway.core.kernel.residency import ResidencyPolicy, processing_rule
from gateway.core.vocabulary import Place, PlaceRule, RegionName, TenantName
from mesh.naming.tree import Area

PolicyOf = Callable[[RegionName], ResidencyPolicy | None]
"""Lookup of the policy in force in a region; None where it is not known."""

_EVERYONE_ELSE = TenantName("")
"""Stands for each tenant without a rule of its own: a DNS name cannot tell tenants apart."""


def areas_of(
    gateways: Iterable[GatewayEntry],
    living: Iterable[GatewayEntry],
    policy_of: PolicyOf,
    geography: Geography,
    config: ControllerConfig,
) -> tuple[Area, ...]:
    """Return one area for each region that has a gateway, living or not.

    A drained gateway is named only where no other may be. A region's own gateways are its nearest: where one of them
    may be named, no other region is considered.
    """
    everybody = sorted(gateways, key=lambda each: (each.place.region, each.gateway_id))
    there = list(living)
    by_region: dict[RegionName, list[GatewayEntry]] = {}
    for each in there:
        by_region.setdefault(each.place.region, []).append(each)
    regions = {each.place.region: each for each in reversed(everybody)}
    areas = []
    for _, standing_for in sorted(regions.items()):
        policy = policy_of(standing_for.place.region)
        rule = None if policy is None else processing_rule(policy, _EVERYONE_ELSE)
        may_be_sent = partial(_may_be_sent, standing_for.place, rule=rule, config=config)
        own = by_region.get(standing_for.place.region, ())
        chosen = [each for each in own if not each.is_drained and may_be_sent(each.place)]
        if not chosen:
            allowed = [each for each in there if may_be_sent(each.place)]
            undrained = [each for each in allowed if not each.is_drained]
            chosen = _nearest(standing_for, undrained or allowed, geography)
        areas.append(_area(standing_for, sorted(chosen, key=_by_name), policy, config))
    return tuple(areas)


def _by_name(gateway: GatewayEntry) -> str:
    return gateway.gateway_id


def anywhere_of(living: Iterable[GatewayEntry], config: ControllerConfig) -> tuple[str, ...]:
    """Return the addresses for clients whose location is unknown.

    Clients in a closed jurisdiction are recognised by their networks, so that unlocated clients are outside all of
    them. They are sent into a closed jurisdiction only while no gateway lives elsewhere, and only if all living
    gateways are in one jurisdiction: between two, the right one cannot be told.
    """
    there = sorted(living, key=lambda each: each.gateway_id)
    undrained = [each for each in there if not each.is_drained]
    is_open = [each for each in there if each.place.jurisdiction not in config.closed_jurisdictions]
    named = [each for each in is_open if each in undrained] or is_open
    return addresses_of(named or _all_in_one_place(undrained) or _all_in_one_place(there))


def addresses_of(gateways: Iterable[GatewayEntry]) -> tuple[str, ...]:
    """Return each address once, in a stable order."""
    return tuple(dict.fromkeys(address for each in gateways for address in each.addresses))


def _may_be_sent(client: Place, to: Place, rule: PlaceRule | None, config: ControllerConfig) -> bool:
    """Return whether clients of one place may be sent to another. A region's own gateways are always allowed; others as
    the closed jurisdictions and the policy's rule say."""
    if to == client:
        return True
    if client.jurisdiction in config.closed_jurisdictions and to.jurisdiction != client.jurisdiction:
        return False
    return rule is not None and rule.allows(to)


def _nearest(client: GatewayEntry, allowed: Iterable[GatewayEntry], geography: Geography) -> list[GatewayEntry]:
    """Return all gateways of the nearest region: a client that is given several addresses takes any of them."""
    by_distance = sorted(allowed, key=lambda each: (geography.distance_ns(client, each), each.place.region))
    return [each for each in by_distance if each.place.region == by_distance[0].place.region]


def _all_in_one_place(gateways: list[GatewayEntry]) -> list[GatewayEntry]:
    return gateways if len({each.place.jurisdiction for each in gateways}) == 1 else []


def _area(
    client: GatewayEntry, chosen: list[GatewayEntry], policy: ResidencyPolicy | None, config: ControllerConfig
) -> Area:
    place = client.place
    names = tuple(each.gateway_id for each in chosen)
    why = "" if chosen else f"no gateway lives that clients in {place.jurisdiction} may be sent to"
    limits = [] if chosen else list(_limits(place, policy, config))
    words = "; ".join([why, *limits])
    is_closed = place.jurisdiction in config.closed_jurisdictions
    return Area(place.region, place.jurisdiction, names, addresses_of(chosen), words, is_closed=is_closed)


def _limits(client: Place, policy: ResidencyPolicy | None, config: ControllerConfig) -> Iterator[str]:
    """Reasons for an area without gateways, for the operator."""
    if client.jurisdiction in config.closed_jurisdictions:
        yield f"{client.jurisdiction} is closed"
    if policy is None:
        yield f"the policy of {client.region} is not known"
    elif policy.closed_reason:
        yield f"the policy of {client.region} is closed: {policy.closed_reason}"
    else:
        narrowed = ", as the controller narrows it," if policy.narrowed_by else ""
        yield f"the policy of {client.region}{narrowed} says where else its requests may be processed"
