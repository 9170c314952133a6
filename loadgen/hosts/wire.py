"""Carries IP packets between sites, in their links' shapes. Pure: packets, times and chance are arguments, and the
caller reads and writes.

A middlebox of each link knows its TCP connections, as firewalls and address translators do: packets of a connection
whose beginning it has not seen vanish.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from loadgen.hosts.shapes import Direction, LinkShape, LinkTable, Site

_MILLISECOND_NS = 1_000_000
_FLOWS_MAX = 4096
"""Most connections that a middlebox knows; beyond it, it forgets the one that was silent for longest."""
_TCP = 6
_SYN, _ACK = 0x02, 0x10
_HEADER_BYTES_MIN = 20
_SITE_BYTE = 2
"""Byte of an address that is the number of its site: 10.77.SITE.HOST."""
NETWORK = (10, 77)

_Flow = tuple[bytes, bytes]
"""Address and port of both ends, the smaller first, so that both directions are one flow."""


class IpPacket(Struct, frozen=True):
    """Fields of an IPv4 packet that decide its way."""

    source: int
    """Number of the site."""
    destination: int
    flow: _Flow | None
    """Connection that it belongs to; None: it is not of TCP."""
    is_opening: bool
    """True for the first packet of its connection."""


def read_packet(data: bytes) -> IpPacket | None:
    """Read an IPv4 packet between sites; None for any other."""
    if len(data) < _HEADER_BYTES_MIN or data[0] >> 4 != 4:
        return None
    if tuple(data[12:14]) != NETWORK or tuple(data[16:18]) != NETWORK:
        return None
    flow, is_opening, header = None, False, 4 * (data[0] & 0x0F)
    if data[9] == _TCP and len(data) >= header + 14 and not _is_later_fragment(data):
        ends = sorted((data[12:16] + data[header : header + 2], data[16:20] + data[header + 2 : header + 4]))
        flow = ends[0], ends[1]
        is_opening = data[header + 13] & (_SYN | _ACK) == _SYN
    return IpPacket(data[12 + _SITE_BYTE], data[16 + _SITE_BYTE], flow, is_opening)


def _is_later_fragment(data: bytes) -> bool:
    return bool((data[6] & 0x1F) or data[7])


class KnownFlows:
    """Connections that the middlebox of a link knows."""

    def __init__(self, flows_max: int = _FLOWS_MAX) -> None:
        self._flows_max = flows_max
        self._flows: dict[_Flow, None] = {}
        """Known connections, the one that was silent for longest first."""

    def lets_through(self, packet: IpPacket) -> bool:
        """True unless the packet is of a connection that is not known. A packet that opens one makes it known."""
        if packet.flow is None:
            return True
        is_known = packet.flow in self._flows
        if not is_known and not packet.is_opening:
            return False
        if is_known:
            del self._flows[packet.flow]
        elif len(self._flows) >= self._flows_max:
            del self._flows[next(iter(self._flows))]
        self._flows[packet.flow] = None
        return True

    def forget(self) -> None:
        """Forget all connections: nothing tells their ends."""
        self._flows.clear()


class ShapedLink:
    """One direction of a link."""

    def __init__(self, shape: LinkShape, rng: random.Random) -> None:
        self.shape = shape
        self._rng = rng
        self._free_ns = 0
        """Time at which the last packet has left the bandwidth's queue."""
        self.latest_ns = 0
        """Latest arrival of a packet so far; none arrives earlier, unless the shape reorders."""

    def arrival_ns(self, now_ns: int, size: int) -> int | None:
        """Time at which a packet arrives; None: it is lost."""
        shape = self.shape
        if shape.is_cut or (shape.packet_max_bytes is not None and size > shape.packet_max_bytes):
            return None
        if shape.loss and self._rng.random() < shape.loss:
            return None
        leaves_ns = now_ns
        if shape.rate_kbit_s is not None:
            begins_ns = max(now_ns, self._free_ns)
            if begins_ns - now_ns > shape.queue_ms * _MILLISECOND_NS:
                return None
            leaves_ns = self._free_ns = begins_ns + round(8 * size / shape.rate_kbit_s * _MILLISECOND_NS)
        delay_ms = shape.delay_ms
        if shape.jitter_ms:
            delay_ms += self._rng.uniform(-shape.jitter_ms, shape.jitter_ms)
        arrival_ns = leaves_ns + round(max(0.0, delay_ms) * _MILLISECOND_NS)
        self.latest_ns = max(self.latest_ns, arrival_ns)
        return arrival_ns if shape.reorders else self.latest_ns


class PacketWire:
    """All links, and the packets on their way."""

    def __init__(self, sites: Mapping[Site, int], links: LinkTable, rng: random.Random) -> None:
        """`sites`: each site's number in its addresses."""
        self._names = {number: name for name, number in sites.items()}
        self._links = {way: ShapedLink(shape, rng) for way, shape in links.items()}
        self._flows: dict[frozenset[Site], KnownFlows] = {frozenset(way): KnownFlows() for way in links}
        self._on_their_way: list[tuple[int, int, Site, bytes]] = []
        """Heap of packets: arrival, order of sending, destination and content."""
        self._sent = 0
        self.lost: Counter[Direction] = Counter()
        """Packets lost, by direction."""
        self.carried: Counter[Direction] = Counter()
        self.overtaking: Counter[Direction] = Counter()
        """Carried packets that arrive before one that was sent earlier."""
        self.delay_ns: Counter[Direction] = Counter()
        """Sum of the carried packets' time on their way."""

    def shape(self, links: LinkTable) -> None:
        """Give links other shapes. Packets on their way arrive as they would have."""
        for way, shape in links.items():
            self._links[way].shape = shape

    def forget_connections(self, ways: Iterable[Direction]) -> None:
        """Have the middleboxes of these links forget their connections."""
        for way in ways:
            self._flows[frozenset(way)].forget()

    def send(self, data: bytes, now_ns: int) -> None:
        packet = read_packet(data)
        if packet is None:
            return
        source, destination = self._names.get(packet.source), self._names.get(packet.destination)
        if source is None or destination is None:
            return
        way = source, destination
        link = self._links.get(way)
        if link is None:
            return
        latest_ns = link.latest_ns
        is_known = link.shape.is_cut or self._flows[frozenset(way)].lets_through(packet)
        arrival_ns = link.arrival_ns(now_ns, len(data)) if is_known else None
        if arrival_ns is None:
            self.lost[way] += 1
            return
        self.carried[way] += 1
        self.overtaking[way] += arrival_ns < latest_ns
        self.delay_ns[way] += arrival_ns - now_ns
        self._sent += 1
        heapq.heappush(self._on_their_way, (arrival_ns, self._sent, destination, data))

    def next_ns(self) -> int | None:
        """Time of the next arrival; None: nothing is on its way."""
        return self._on_their_way[0][0] if self._on_their_way else None

    def arrived(self, now_ns: int) -> Iterator[tuple[int, Site, bytes]]:
        """Take the packets that have arrived: the time at which each was due, its destination and content."""
        while self._on_their_way and self._on_their_way[0][0] <= now_ns:
            due_ns, _, destination, data = heapq.heappop(self._on_their_way)
            yield due_ns, destination, data
