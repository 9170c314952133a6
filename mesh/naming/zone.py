"""Names of one zone and their records for a client in one place, computed from a record tree alone, so that all servers
with the same tree answer alike.

It decides neither which gateways are alive nor which may be used: the tree has decided that. It knows no packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from zlib import crc32

import dns.exception
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from msgspec import Struct

from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.client_location import ClientLocation, Network, Networks
from mesh.naming.tree import Area, RecordTree

ADDRESSES_MAX = 8
"""Most addresses of each kind in one answer. Eight leave a client alternatives, and more would make the server an
amplifier."""
NAME_SERVERS_MAX = 13
NEGATIVE_TTL_S = 5
_STANDING_TTL_S = 300
"""TTL in seconds of records that change only with region files: name servers and their addresses."""
_IN = dns.rdataclass.IN
_HTTPS_PORT = 443
_LABELS = "nearest", "further"
"""Labels, below a region's name, of the targets of its HTTPS records. They have no underscore, which would set them
apart from names of regions: name servers may refuse addresses under such names."""
_HINTS = {dns.rdatatype.A: "ipv4hint", dns.rdatatype.AAAA: "ipv6hint"}

Sets = tuple[dns.rrset.RRset, ...]


class HttpsTarget(Struct, frozen=True):
    """Name that an HTTPS record leads to."""

    name: dns.name.Name
    addresses: tuple[str, ...]


class ZoneAnswer(Struct, frozen=True):
    """Records of a name, for one client."""

    sets: Sets
    scope_bits: int = 0
    """Leading bits of the client's address that the answer is for; 0 for all clients."""
    why: str = ""
    """Reason why there are no addresses, where there are none."""
    further: frozenset[str] = frozenset()
    """Addresses among them that clients should try last."""


class Zone:
    """Names of one record tree. Raises ValueError for a tree that cannot be answered from."""

    def __init__(self, tree: RecordTree, networks: Networks | None = None) -> None:
        """Index the tree. `networks` may be those of an earlier zone with the same areas."""
        self.tree = tree
        self.networks = networks or Networks(tree.areas)
        self.name = _name_of(tree.zone, "the zone")
        self._areas = {each.region: each for each in tree.areas}
        self._by_name = {region_name(each.region, self.name): each for each in tree.areas}
        self.servers = dict(_servers(tree))
        self._targets = https_targets(self.name, tree)
        self._by_target = {each.name: (region, each) for region, found in self._targets.items() for each in found}
        self._anywhere = _nowhere(
            tree.anywhere, "" if tree.anywhere else "no gateway is up that clients may be sent to"
        )
        self._hands: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[tuple[str, ...], ...]] = {}
        self._sets: dict[tuple[dns.name.Name, RegionName, tuple[str, ...]], Sets] = {}
        """Cache of record sets by name, area and addresses. Like `_hands`, it is filled on demand and bounded by the
        tree."""
        closed = dict.fromkeys(each.jurisdiction for each in tree.areas if each.is_closed)
        self._closed = {each: _of_jurisdiction(each, tree) for each in closed}
        self._services = services(self.name, tree)
        known = (*self.servers, *self._services, *filter(None, self._by_name))
        self._above = frozenset(above for each in known for above in _between(each, self.name))
        for text in (*tree.anywhere, *(address for each in tree.areas for address in each.addresses)):
            ip_address(text)
        self.soa = self._soa(_STANDING_TTL_S)
        self.negative_soa = self._soa(NEGATIVE_TTL_S)
        self._ns = self._name_servers()

    def find(self, name: dns.name.Name, client: Network) -> ZoneAnswer | None:
        """Records of a name for a client; None where the name does not exist."""
        if name in self.servers:
            return ZoneAnswer(tuple(address_sets(name, self.servers[name], _STANDING_TTL_S)))
        where = self.networks.locate(client)
        if name == self.name:
            found = self._at(name, self._nearest(where), where, client)
            return ZoneAnswer((*found.sets, *self._ns, self.soa), found.scope_bits, found.why, found.further)
        if name in self._services:
            return self._service(name, where)
        area = self._by_name.get(name)
        if area is not None:
            return self._at(name, self._asked_for(area, where), where, client)
        if name in self._by_target:
            return self._at_target(name, where, client)
        return ZoneAnswer(()) if name in self._above else None

    def glue(self) -> list[dns.rrset.RRset]:
        """Addresses of the zone's name servers, as far as they are in the zone."""
        return [each for name, known in self.servers.items() for each in address_sets(name, known, _STANDING_TTL_S)]

    # Choice of the area

    def _nearest(self, where: ClientLocation) -> Area:
        """Area for a client. One that may be in a closed jurisdiction is given that jurisdiction's addresses alone, one
        that may be in two of them is given none."""
        if where.region is not None:
            return self._areas[where.region]
        if not where.closed:
            return self._anywhere
        if len(where.closed) == 1:
            return self._closed[where.closed[0]]
        return _nowhere((), f"clients of that network are in {' and in '.join(where.closed)}, which are closed")

    def _asked_for(self, area: Area, where: ClientLocation) -> Area:
        """Area whose name was asked for; empty for a client that may be in another, closed jurisdiction."""
        if all(each == area.jurisdiction for each in where.closed):
            return area
        return _nowhere((), f"clients in {' and in '.join(where.closed)} get no addresses elsewhere")

    # Records of the area

    def _at(self, name: dns.name.Name, area: Area, where: ClientLocation, client: Network) -> ZoneAnswer:
        key = name, area.region, self._hand(area, client)
        sets = self._sets.get(key)
        if sets is None:
            sets = self._sets[key] = self._made(*key)
        further = frozenset(str(ip_address(each)) for each in area.further)
        return ZoneAnswer(sets, where.scope_bits, "" if sets else area.why, further)

    def _made(self, name: dns.name.Name, region: RegionName, addresses: tuple[str, ...]) -> Sets:
        sets = tuple(address_sets(name, addresses, self.tree.ttl_s))
        if not sets or not self.tree.tls:
            return sets
        targets = [
            HttpsTarget(each.name, tuple(address for address in addresses if address in each.addresses))
            for each in self._targets.get(region, ())
        ]
        return *sets, https_set(name, self.tree, targets or [HttpsTarget(name, addresses)], with_hints=True)

    def _at_target(self, name: dns.name.Name, where: ClientLocation, client: Network) -> ZoneAnswer:
        """Addresses of a name that HTTPS records lead to, of the same group that the client is given elsewhere."""
        region, target = self._by_target[name]
        area = self._asked_for(self._areas[region], where)
        addresses = [each for each in self._hand(area, client) if each in target.addresses]
        sets = tuple(address_sets(name, addresses, self.tree.ttl_s))
        return ZoneAnswer(sets, where.scope_bits, "" if sets else area.why)

    def _hand(self, area: Area, client: Network) -> tuple[str, ...]:
        """Group of an area's addresses that fits one answer: other groups for other clients, the same one for each
        client whatever it asks."""
        if len(area.addresses) <= ADDRESSES_MAX:
            return area.addresses
        key = area.addresses, area.further
        hands = self._hands.get(key)
        if hands is None:
            hands = self._hands[key] = tuple(_hands(*key))
        return hands[crc32(client.network_address.packed) % len(hands)]

    def _service(self, name: dns.name.Name, where: ClientLocation) -> ZoneAnswer:
        area = self._nearest(where)
        if not area.addresses:
            return ZoneAnswer((), where.scope_bits, area.why)
        kind, words = self._services[name]
        targets = self._targets.get(area.region, ()) if kind == "HTTPS" else ()
        found = https_set(name, self.tree, targets) if targets else _set(name, self.tree.ttl_s, kind, [words])
        return ZoneAnswer((found,), where.scope_bits)

    def _soa(self, ttl_s: int) -> dns.rrset.RRset:
        first = next((each.name for each in self.tree.name_servers), self.tree.zone)
        serial = self.tree.version % (1 << 32)
        words = f"{first} hostmaster.{self.tree.zone} {serial} 60 30 86400 {NEGATIVE_TTL_S}"
        return _set(self.name, ttl_s, "SOA", [words])

    def _name_servers(self) -> Sets:
        names = [each.name for each in self.tree.name_servers]
        return (_set(self.name, _STANDING_TTL_S, "NS", names),) if names else ()


def _name_of(text: str, what: str) -> dns.name.Name:
    try:
        name = dns.name.from_text(text, origin=None)
    except (dns.exception.DNSException, UnicodeError) as error:
        raise ValueError(f"{what} is {text!r}, which is no name: {error}") from error
    if not name.is_absolute() or name == dns.name.root:
        raise ValueError(f"{what} is {text!r}, which is not a whole name with a dot at its end")
    return name


def _servers(tree: RecordTree) -> Iterator[tuple[dns.name.Name, tuple[str, ...]]]:
    """Yield the name servers inside the zone with their addresses; those of the others are answered elsewhere."""
    if len(tree.name_servers) > NAME_SERVERS_MAX:
        raise ValueError(f"{len(tree.name_servers)} servers for {tree.zone}: at most {NAME_SERVERS_MAX} can be told")
    zone = _name_of(tree.zone, "the zone")
    for each in tree.name_servers:
        name = _name_of(each.name, "a name server")
        if name.is_subdomain(zone):
            for address in each.addresses:
                ip_address(address)
            yield name, each.addresses


def region_name(region: RegionName, zone: dns.name.Name) -> dns.name.Name | None:
    """DNS name of a region; None where the region's name makes none, so that only the mesh's name leads there."""
    try:
        return dns.name.from_text(region.lower(), origin=zone)
    except dns.exception.DNSException:
        return None


def services(zone: dns.name.Name, tree: RecordTree) -> dict[dns.name.Name, tuple[str, str]]:
    """Service names that lead to the mesh's name (RFC 2782, and RFC 9460 §2.3 where the port is not that of https)."""
    port, scheme = tree.port, "https" if tree.tls else "http"
    services = {dns.name.from_text(f"_{scheme}._tcp", origin=zone): ("SRV", f"0 0 {port} {zone}")}
    if tree.tls and port != _HTTPS_PORT:
        services[dns.name.from_text(f"_{port}._https", origin=zone)] = ("HTTPS", f"1 {zone} alpn=http/1.1 port={port}")
    return services


def https_targets(zone: dns.name.Name, tree: RecordTree) -> dict[RegionName, tuple[HttpsTarget, ...]]:
    """Targets of the HTTPS records of each region with further gateways, in the order in which clients try them. A
    region has none where another region or a name server has one of the names, and none without TLS.

    The further target is not the further region's own name: that one serves other clients, and leads elsewhere when the
    gateways of its region are down.
    """
    if not tree.tls:
        return {}
    names = Counter(filter(None, (region_name(each.region, zone) for each in tree.areas)))
    taken = {*names, *dict(_servers(tree))}
    targets = {}
    for area in tree.areas:
        own = tuple(each for each in area.addresses if each not in area.further)
        at = tuple(target_names(area.region, zone))
        is_free = len(at) == len(_LABELS) and taken.isdisjoint(at) and names[at[0].parent()] == 1
        if own and area.further and is_free:
            targets[area.region] = tuple(map(HttpsTarget, at, (own, area.further)))
    return targets


def target_names(region: RegionName, zone: dns.name.Name) -> Iterator[dns.name.Name]:
    """Yield the names that HTTPS records of a region may lead to."""
    for label in _LABELS:
        name = region_name(RegionName(f"{label}.{region}"), zone)
        if name is not None:
            yield name


def https_set(
    name: dns.name.Name, tree: RecordTree, targets: Iterable[HttpsTarget], *, with_hints: bool = False
) -> dns.rrset.RRset:
    """HTTPS records, which say that TLS is spoken there (RFC 9460): one for each target, the first of which clients try
    first."""
    records = []
    for priority, each in enumerate(targets, 1):
        hints = each.addresses if with_hints else ()
        leads_to = "." if each.name == name else each.name.to_text()
        records.append(" ".join([f"{priority} {leads_to}", *_https_parameters(tree, hints)]))
    return _set(name, tree.ttl_s, "HTTPS", records)


def _https_parameters(tree: RecordTree, hints: Iterable[str]) -> Iterator[str]:
    yield "alpn=http/1.1"
    if tree.port != _HTTPS_PORT:
        yield f"port={tree.port}"
    for each in address_sets(dns.name.root, hints, tree.ttl_s):
        yield f"{_HINTS[each.rdtype]}={','.join(address.to_text() for address in each)}"


def _between(name: dns.name.Name, zone: dns.name.Name) -> Iterator[dns.name.Name]:
    """Yield the names between it and the zone, which exist because it does (RFC 8020), though they have no records."""
    above = name.parent()
    while above != zone and above.is_subdomain(zone):
        yield above
        above = above.parent()


def _of_jurisdiction(jurisdiction: Jurisdiction, tree: RecordTree) -> Area:
    """Area with all addresses of a jurisdiction, for clients in any of its regions."""
    areas = [each for each in tree.areas if each.jurisdiction == jurisdiction]
    addresses = tuple(dict.fromkeys(address for each in areas for address in each.addresses))
    return _nowhere(addresses, "" if addresses else areas[0].why)


def _nowhere(addresses: tuple[str, ...], why: str) -> Area:
    """Area for clients whose region is unknown."""
    return Area(RegionName(""), Jurisdiction(""), (), addresses, why)


def _hands(addresses: tuple[str, ...], further: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield groups of addresses, each with up to ADDRESSES_MAX of each IP version; a group at the end is filled up from
    the beginning. Those of further gateways are in each group: without them a client of one group would have nowhere to
    go on to, and a client of another would be sent there more often."""
    nearest = [[each for each in addresses if each not in further and _version(each) == version] for version in (4, 6)]
    room = [ADDRESSES_MAX - sum(_version(each) == version for each in further) for version in (4, 6)]
    count = max(-(-len(each) // most) for each, most in zip(nearest, room, strict=True))
    for number in range(count):
        named = (
            each[(number * most + step) % len(each)]
            for each, most in zip(nearest, room, strict=True)
            for step in range(min(most, len(each)))
        )
        yield (*named, *further)


def _version(address: str) -> int:
    return ip_address(address).version


def address_sets(name: dns.name.Name, addresses: Iterable[str], ttl_s: int) -> Iterator[dns.rrset.RRset]:
    by_version: dict[int, list[str]] = {4: [], 6: []}
    for address in addresses:
        by_version[ip_address(address).version].append(address)
    for kind, found in (("A", by_version[4]), ("AAAA", by_version[6])):
        if found:
            yield _set(name, ttl_s, kind, found)


def _set(name: dns.name.Name, ttl_s: int, kind: str, words: Sequence[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, ttl_s, _IN, kind, words)
