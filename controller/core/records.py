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
        areas.append(_area(standing_for, chosen, config))
    return tuple(areas)


def anywhere_of(living: Iterable[GatewayEntry], config: ControllerConfig) -> tuple[str, ...]:
    """For clients of whom nobody can say where they are. Whoever is in a closed jurisdiction is known by its networks,
    so that they are outsiders, and are led into none while any other gateway lives; and never into one of two, since
    nobody could say which."""
    there = sorted(living, key=lambda each: each.gateway_id)
    undrained = [each for each in there if not each.is_drained]
    is_open = [each for each in there if each.place.jurisdiction not in config.closed_jurisdictions]
    named = [each for each in is_open if each in undrained] or is_open
    return addresses_of(named or _all_in_one_place(undrained) or _all_in_one_place(there))


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
    nearest = min(allowed, key=lambda each: (geography.distance_ns(client, each), each.place.region))
    there = [each for each in allowed if each.place.region == nearest.place.region]
    return sorted(there, key=lambda each: each.gateway_id)


def _all_in_one_place(gateways: list[GatewayEntry]) -> list[GatewayEntry]:
    return gateways if len({each.place.jurisdiction for each in gateways}) == 1 else []


def _area(client: GatewayEntry, chosen: list[GatewayEntry], config: ControllerConfig) -> Area:
    place = client.place
    names = tuple(each.gateway_id for each in chosen)
    why = "" if chosen else f"no gateway lives that clients in {place.jurisdiction} may be sent to"
    is_closed = place.jurisdiction in config.closed_jurisdictions
    return Area(place.region, place.jurisdiction, names, addresses_of(chosen), why, is_closed=is_closed)
