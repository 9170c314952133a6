"""Records of the mesh's DNS name for clients of each region: the nearest living gateways to which they may be sent, and
some in further regions for clients whose connections to these are refused.

DNS is a hint and enforces nothing: each gateway checks admission itself. Still, no record sends a client of a closed
jurisdiction out of it, nor to a region where its own region's policy forbids the processing of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.vocabulary import GatewayEntry
from gateway.core.kernel.residency import ResidencyPolicy, both, processing_rule
from gateway.core.vocabulary import GatewayId, Place, PlaceRule, RegionName, TenantName
from mesh.naming.tree import Area

LastFurther = Mapping[RegionName, Collection[RegionName]]
"""Regions of the further gateways last named, by that of the clients."""

PolicyOf = Callable[[RegionName], ResidencyPolicy | None]
"""Lookup of the policy in force in a region; None where it is not known."""

_EVERYONE_ELSE = TenantName("")
"""Stands for each tenant without a rule of its own: a DNS name cannot tell tenants apart."""

_CLEARLY_NEARER = 0.8
"""Share of the distance of a further region last named at which another region takes its place."""


class _Mesh(Struct, frozen=True):
    """Grounds of the choice of further gateways."""

    policy_of: PolicyOf
    geography: Geography
    last_further: LastFurther


def areas_of(
    gateways: Iterable[GatewayEntry],
    living: Iterable[GatewayEntry],
    policy_of: PolicyOf,
    geography: Geography,
    config: ControllerConfig,
    *,
    returning: Collection[GatewayEntry] = (),
    last_further: LastFurther = MappingProxyType({}),
) -> tuple[Area, ...]:
    """Return one area for each region that has a gateway, living or not.

    A drained gateway is named only where no other that lives may be, one of `returning`, which answer and are not up
    yet, only in its own region where none that lives may be, and one without addresses only where none with addresses
    may be. A region's own gateways are its nearest. The nearest come first, then one of each further region.
    """
    every_gateway = sorted(gateways, key=lambda each: (each.place.region, each.gateway_id))
    there = list(living)
    by_region = _by_region(there)
    back_in = _by_region(returning)
    regions = {each.place.region: each for each in reversed(every_gateway)}
    mesh = _Mesh(policy_of, geography, last_further)
    areas = []
    for _, standing_for in sorted(regions.items()):
        policy = policy_of(standing_for.place.region)
        rule = None if policy is None else processing_rule(policy, _EVERYONE_ELSE)
        may_be_sent = partial(_may_be_sent, standing_for.place, rule=rule, config=config)
        own = by_region.get(standing_for.place.region, ())
        chosen = [each for each in own if not each.is_drained and each.addresses and may_be_sent(each.place)]
        if not chosen:
            allowed = [each for each in there if may_be_sent(each.place)]
            back = [each for each in back_in.get(standing_for.place.region, ()) if each.place == standing_for.place]
            chosen = _first_choice(standing_for, allowed, back, geography)
        chosen = sorted(chosen, key=_by_name)
        further: dict[GatewayEntry, tuple[str, ...]] = {}
        if chosen and policy is not None and config.further_gateways:
            may_be_named = [each for each in there if not each.is_drained and may_be_sent(each.place)]
            further = dict(islice(_further(standing_for, chosen, may_be_named, mesh), config.further_gateways))
        areas.append(_area(standing_for, chosen, further, policy, config))
    return tuple(areas)


def _by_region(gateways: Iterable[GatewayEntry]) -> dict[RegionName, list[GatewayEntry]]:
    found: dict[RegionName, list[GatewayEntry]] = {}
    for each in gateways:
        found.setdefault(each.place.region, []).append(each)
    return found


def _first_choice(
    client: GatewayEntry, allowed: list[GatewayEntry], back: list[GatewayEntry], geography: Geography
) -> list[GatewayEntry]:
    """Return the gateways to name: of those with addresses, and otherwise of the others, the client's own, or those of
    the nearest region that are allowed, or else the client's own that return."""
    for has_addresses in (True, False):
        reached = [each for each in allowed if bool(each.addresses) is has_addresses]
        own = [each for each in reached if each.place.region == client.place.region and not each.is_drained]
        returning = [each for each in back if bool(each.addresses) is has_addresses]
        if found := own or _nearest(client, _undrained(reached), geography) or _undrained(returning):
            return found
    return []


def with_last(
    areas: Iterable[Area],
    last: Iterable[Area],
    gateways: Mapping[GatewayId, GatewayEntry],
    policy_of: PolicyOf,
    config: ControllerConfig,
) -> tuple[Area, ...]:
    """Return the areas, with the last answer of a region where the present one has no gateway: its nearest gateways,
    as far as they are registered with these addresses, and the region's clients may be sent to them now."""
    before = {each.region: each for each in last}
    found = []
    for area in areas:
        known = before.get(area.region)
        if area.gateways or known is None:
            found.append(area)
            continue
        policy = policy_of(area.region)
        rule = None if policy is None else processing_rule(policy, _EVERYONE_ELSE)
        place = Place(area.region, area.jurisdiction)
        nearest = set(known.addresses).difference(known.further)
        registered = [gateways[each] for each in known.gateways if each in gateways]
        named = [
            each
            for each in registered
            if nearest.intersection(each.addresses) and _may_be_sent(place, each.place, rule, config)
        ]
        addresses = tuple(each for each in addresses_of(named) if each in nearest)
        names = tuple(each.gateway_id for each in named)
        found.append(replace(area, gateways=names, addresses=addresses, why="") if named else area)
    return tuple(found)


def _undrained(gateways: list[GatewayEntry]) -> list[GatewayEntry]:
    """Return those that are not drained, or all where each is."""
    return [each for each in gateways if not each.is_drained] or gateways


def _further(
    client: GatewayEntry, chosen: Collection[GatewayEntry], allowed: Iterable[GatewayEntry], mesh: _Mesh
) -> Iterator[tuple[GatewayEntry, tuple[str, ...]]]:
    """Yield a gateway of each region beyond the chosen gateways' own where each tenant of the client's region may be
    served, as the client's tenant is not known, and the addresses that it adds: the nearest region first. A region last
    named comes first unless another is clearly nearer: round trips vary, and clients that move lose their caches."""
    nearest = {each.place.region for each in chosen}
    by_region: dict[RegionName, list[GatewayEntry]] = {}
    for each in sorted(allowed, key=_by_name):
        if each.place.region not in nearest:
            by_region.setdefault(each.place.region, []).append(each)
    last = mesh.last_further.get(client.place.region, ())

    def order(region: RegionName) -> tuple[float, bool, RegionName]:
        distance_ns = mesh.geography.distance_ns(client, by_region[region][0])
        is_new = region not in last
        return distance_ns if is_new else _CLEARLY_NEARER * distance_ns, is_new, region

    named = addresses_of(chosen)
    versions = {_is_ipv6(each) for each in named}
    for region in sorted(by_region, key=order):
        for each in by_region[region]:
            added = _added(each, named, versions)
            if added and _serves_every_tenant(client.place, each.place, mesh):
                named += added
                yield each, added
                break


def _added(further: GatewayEntry, named: Collection[str], versions: Collection[bool]) -> tuple[str, ...]:
    """Return the addresses of a further gateway that an answer names beside the others: one of each IP version, so that
    clients go there no more often than to another gateway, and none of a version that the nearest gateways lack."""
    added: dict[bool, str] = {}
    for address in further.addresses:
        if address not in named and _is_ipv6(address) in versions:
            added.setdefault(_is_ipv6(address), address)
    return tuple(added.values())


def _is_ipv6(address: str) -> bool:
    return ":" in address


def _serves_every_tenant(client: Place, to: Place, mesh: _Mesh) -> bool:
    """Return whether requests of each tenant that the policies of both regions name, and of all others, may enter at
    another place instead of the client's own region, be processed there, and go on from there only where their own
    region lets them be processed too, and whether logs there show no more of them."""
    own, there = mesh.policy_of(client.region), mesh.policy_of(to.region)
    if own is None or there is None or own.closed_reason or there.closed_reason or not _logs_no_more(own, there):
        return False
    tenants = dict.fromkeys([_EVERYONE_ELSE, *own.tenants, *there.tenants])
    rules = dict.fromkeys((processing_rule(own, each), processing_rule(there, each)) for each in tenants)
    may_be_there = all(ours.allows(to) and theirs.allows(to) for ours, theirs in rules)
    return may_be_there and all(_goes_no_further(ours, theirs) for ours, theirs in rules)


def _goes_no_further(ours: PlaceRule, theirs: PlaceRule) -> bool:
    """Return whether our rule allows each place that theirs allows, wherever a region may lie: the controller does not
    know all places of replicas and peers. False where the rules alone do not tell."""
    return both(theirs, ours) == both(theirs, theirs)


def _logs_no_more(own: ResidencyPolicy, there: ResidencyPolicy) -> bool:
    """Return whether logs there show no detail of a request that logs of its own region may not show."""
    ours, theirs = own.logging, there.logging
    return (
        theirs.tenant <= ours.tenant
        and theirs.client_address <= ours.client_address
        and theirs.session_key <= ours.session_key
    )


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
    client: GatewayEntry,
    chosen: list[GatewayEntry],
    further: Mapping[GatewayEntry, tuple[str, ...]],
    policy: ResidencyPolicy | None,
    config: ControllerConfig,
) -> Area:
    place = client.place
    names = tuple(each.gateway_id for each in (*chosen, *further))
    why = "" if chosen else f"no gateway lives that clients in {place.jurisdiction} may be sent to"
    limits = [] if chosen else list(_limits(place, policy, config))
    words = "; ".join([why, *limits])
    is_closed = place.jurisdiction in config.closed_jurisdictions
    added = tuple(address for each in further.values() for address in each)
    addresses = (*addresses_of(chosen), *added)
    return Area(place.region, place.jurisdiction, names, addresses, words, is_closed=is_closed, further=added)


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
