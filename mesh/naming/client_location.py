"""Finds the region of a client from its address, by the networks that an operator has listed for each region.

A client in none of them is in no known region. No other source is looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from msgspec import Struct

from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.tree import Area

NETWORKS_MAX = 65_536
"""Most networks of all regions together."""
_BITS = {4: 32, 6: 128}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class ClientLocation(Struct, frozen=True):
    """Location of a client, or of a whole network of clients."""

    region: RegionName | None
    """Region; None where it is unknown, or where the network spans several."""
    closed: tuple[Jurisdiction, ...]
    """Closed jurisdictions that clients of the network are in: none, one, or the first two of several."""
    scope_bits: int
    """Leading bits of the address that all clients with the same location share; more than the query had where those
    were too few."""


class Networks:
    """Networks of the regions; of several that hold an address, the narrowest counts."""

    def __init__(self, areas: Iterable[Area]) -> None:
        """Sort the networks. Raises ValueError for a malformed network, for one that two regions claim, and for too
        many."""
        known = tuple(areas)
        claimed = _claimed(known)
        closed = {each.region: each.jurisdiction for each in known if each.is_closed}
        self._pieces = {version: _Pieces(version, claimed, closed) for version in _BITS}

    def locate(self, client: Network) -> ClientLocation:
        """Location of one address, or of a network as a resolver sends it, in logarithmic time."""
        return self._pieces[client.version].find(client)


class _Pieces:
    """Whole space of addresses of one IP version, cut where the region changes."""

    def __init__(
        self, version: int, claimed: dict[Network, RegionName], closed: dict[RegionName, Jurisdiction]
    ) -> None:
        self._bits = _BITS[version]
        self._starts: list[int] = []
        self._regions: list[RegionName | None] = []
        nested = sorted(
            (
                (int(each.network_address), int(each.broadcast_address), region)
                for each, region in claimed.items()
                if each.version == version
            ),
            key=lambda piece: (piece[0], -piece[1]),
        )
        for start, region in _flattened(nested, (1 << self._bits) - 1):
            self._cut(start, region)
        self._closed: list[tuple[int, int, Jurisdiction]] = []
        """Closed pieces: first address, first address behind, and jurisdiction."""
        for piece, closed_region in enumerate(self._regions):
            if closed_region is not None and closed_region in closed:
                self._closed.append((self._starts[piece], self._end(piece), closed[closed_region]))
        self._closed_ends = [end for _, end, _ in self._closed]
        self._next_other = _next_others([jurisdiction for _, _, jurisdiction in self._closed])

    def find(self, client: Network) -> ClientLocation:
        first, last = int(client.network_address), int(client.broadcast_address)
        piece = bisect_right(self._starts, first) - 1
        region = self._regions[piece]
        scope_bits = self._bits - self._uniform_bits(first, piece)
        if last < self._end(piece):
            return ClientLocation(region, self._closed_within(first, first), min(scope_bits, client.prefixlen))
        return ClientLocation(None, self._closed_within(first, last), scope_bits)

    def _cut(self, start: int, region: RegionName | None) -> None:
        """Begin a piece at `start`. The last of several cuts at one place counts, and neighbours of the same region are
        joined."""
        if self._starts and self._starts[-1] == start:
            self._starts.pop()
            self._regions.pop()
        if not self._regions or self._regions[-1] != region:
            self._starts.append(start)
            self._regions.append(region)

    def _end(self, piece: int) -> int:
        """First address behind the piece."""
        return self._starts[piece + 1] if piece + 1 < len(self._starts) else 1 << self._bits

    def _uniform_bits(self, address: int, piece: int) -> int:
        """Number of trailing bits of the address that can vary without leaving the piece."""
        start, end = self._starts[piece], self._end(piece)
        below = (address ^ (start - 1)).bit_length() - 1 if start else self._bits
        above = (address ^ end).bit_length() - 1
        return min(below, above, self._bits)

    def _closed_within(self, first: int, last: int) -> tuple[Jurisdiction, ...]:
        found = bisect_right(self._closed_ends, first)
        if found == len(self._closed) or self._closed[found][0] > last:
            return ()
        other = self._next_other[found]
        if other == len(self._closed) or self._closed[other][0] > last:
            return (self._closed[found][2],)
        return (self._closed[found][2], self._closed[other][2])


def _next_others(jurisdictions: list[Jurisdiction]) -> list[int]:
    """Index of the next entry of another jurisdiction, for each entry; the length of the list where there is none."""
    others = [len(jurisdictions)] * len(jurisdictions)
    for index in range(len(jurisdictions) - 2, -1, -1):
        follows = index + 1
        others[index] = others[follows] if jurisdictions[index] == jurisdictions[follows] else follows
    return others


def _claimed(areas: Iterable[Area]) -> dict[Network, RegionName]:
    claimed: dict[Network, RegionName] = {}
    for area in areas:
        if len(claimed) + len(area.networks) > NETWORKS_MAX:
            raise ValueError(f"more than {NETWORKS_MAX} networks are written down for regions")
        for text in area.networks:
            network = ip_network(text)
            if claimed.setdefault(network, area.region) != area.region:
                raise ValueError(f"{network} is said to be in {claimed[network]} and in {area.region}")
    return claimed


def _flattened(
    nested: Iterable[tuple[int, int, RegionName]], last_of_all: int
) -> Iterator[tuple[int, RegionName | None]]:
    """Yield the start and region of each piece. Networks lie within each other or apart, and are sorted by start, the
    widest first."""
    around: list[tuple[int, RegionName | None]] = [(last_of_all, None)]
    yield 0, None
    for first, last, region in nested:
        yield from _left(around, first)
        yield first, region
        around.append((last, region))
    yield from _left(around, last_of_all + 1)


def _left(around: list[tuple[int, RegionName | None]], address: int) -> Iterator[tuple[int, RegionName | None]]:
    """Drop the networks that end before the address, and yield the start and region of the piece behind each."""
    while len(around) > 1 and around[-1][0] < address:
        last, _ = around.pop()
        if last < around[0][0]:
            yield last + 1, around[-1][1]


def network_of(address: Address) -> Network:
    """Network of this one client. An IPv4 client that came over IPv6 is an IPv4 client."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return ip_network(address)
