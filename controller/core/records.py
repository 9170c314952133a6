"""What the one name says to clients of each region: the nearest gateways that live and that they may be sent to.

DNS is a hint and never enforces anything: a gateway judges who comes in by itself. But no hint leads a client of a
closed jurisdiction out of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.vocabulary import GatewayEntry
from gateway.ground.naming.tree import Area


def areas_of(
    gateways: Iterable[GatewayEntry], living: Iterable[GatewayEntry], geography: Geography, config: ControllerConfig
) -> tuple[Area, ...]:
    """One area for each region that has a gateway, living or not. A gateway that is drained is named only where no
    other one could be."""
    everybody = sorted(gateways, key=lambda each: (each.place.region, each.gateway_id))
    there = list(living)
    named = [each for each in there if not each.is_drained]
    regions = {each.place.region: each for each in reversed(everybody)}
    areas = []
    for _, standing_for in sorted(regions.items()):
        chosen = _nearest(standing_for, named, geography, config) or _nearest(standing_for, there, geography, config)
        areas.append(_area(standing_for, chosen))
    return tuple(areas)


def addresses_of(gateways: Iterable[GatewayEntry]) -> tuple[str, ...]:
    """Each once, in a lasting order."""
    return tuple(dict.fromkeys(address for each in gateways for address in each.addresses))


def _nearest(
    client: GatewayEntry, gateways: Iterable[GatewayEntry], geography: Geography, config: ControllerConfig
) -> list[GatewayEntry]:
    """All of the nearest region: whoever is given several addresses takes any of them."""
    place = client.place
    is_closed = place.jurisdiction in config.closed_jurisdictions
    allowed = [each for each in gateways if not is_closed or each.place.jurisdiction == place.jurisdiction]
    if not allowed:
        return []
    own = [each for each in allowed if each.place.region == place.region]
    if own:  # nobody is nearer than that, and of a hundred regions most have one
        return sorted(own, key=lambda each: each.gateway_id)
    nearest = min(allowed, key=lambda each: (geography.distance_ns(client, each), each.place.region))
    there = [each for each in allowed if each.place.region == nearest.place.region]
    return sorted(there, key=lambda each: each.gateway_id)


def _area(client: GatewayEntry, chosen: list[GatewayEntry]) -> Area:
    place = client.place
    names = tuple(each.gateway_id for each in chosen)
    why = "" if chosen else f"no gateway lives that clients in {place.jurisdiction} may be sent to"
    return Area(place.region, place.jurisdiction, names, addresses_of(chosen), why)
