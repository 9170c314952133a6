"""Limits of what DNS clients may cost this program, and of what it sends to addresses that clients may have forged. It
answers no query.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from mesh.config import DnsConfig
from mesh.naming.client_location import Address, Network, network_of

_SECOND_NS = 1_000_000_000
_NETWORK_BITS = {4: 24, 6: 56}
"""Prefix lengths by IP version; addresses with the same prefix are limited as one client, since a client gets many
single addresses more easily than networks."""


class DnsLimits(Struct, frozen=True):
    """Limits of the DNS server, equal for all clients."""

    answers_per_s: int = 200
    """Answers by datagram in a second to one network (/24 or /56); every second query beyond them is told to come by
    TCP, the others are dropped."""
    networks_max: int = 16_384
    """Most networks that are remembered; the one whose last query is oldest is forgotten."""
    connections_max: int = 256
    """TCP connections; with one more, the connection that has sent no query for longest is closed."""
    network_connections_max: int = 32
    """TCP connections of one network; with one more, its connection that has sent no query for longest is closed."""
    idle_s: float = 10.0
    """Seconds after which a TCP client that sends nothing, or does not read, is disconnected."""
    queries_per_connection: int = 1_000
    time_max_ns: int = 100_000_000
    """Nanoseconds of each second that answering may take; later queries wait for the next second."""

    @classmethod
    def from_config(cls, config: DnsConfig) -> DnsLimits:
        return cls(
            answers_per_s=config.answers_per_s,
            connections_max=config.connections_max,
            time_max_ns=config.time_max_ns,
        )


def network_around(client: Address) -> Network:
    """Network that a client is limited as a part of."""
    one = network_of(client)
    return one.supernet(new_prefix=_NETWORK_BITS[one.version])


class DatagramLimit:
    """Token bucket of each network: the datagrams that it may still be sent."""

    def __init__(self, limits: DnsLimits) -> None:
        self._limits = limits
        self._left: OrderedDict[Network, tuple[float, int]] = OrderedDict()
        """Tokens left and the time when that was, by network."""

    def __len__(self) -> int:
        return len(self._left)

    def take(self, client: Address, now_ns: int) -> bool:
        network = network_around(client)
        rate = self._limits.answers_per_s
        left, then_ns = self._left.pop(network, (float(rate), now_ns))
        left = min(float(rate), left + (now_ns - then_ns) / _SECOND_NS * rate)
        is_allowed = left >= 1
        self._left[network] = (left - 1 if is_allowed else left, now_ns)
        if len(self._left) > self._limits.networks_max:
            self._left.popitem(last=False)
        return is_allowed


class TimeShare:
    """Time that answering has taken in the current second, counted from the first answer in it."""

    def __init__(self, time_max_ns: int) -> None:
        self._time_max_ns = time_max_ns
        self._began_ns = -_SECOND_NS
        self._spent_ns = 0

    def spend(self, now_ns: int, taken_ns: int) -> None:
        if now_ns >= self._began_ns + _SECOND_NS:
            self._began_ns, self._spent_ns = now_ns, 0
        self._spent_ns += taken_ns

    def rest_ns(self, now_ns: int) -> int:
        """Nanoseconds until queries may be answered again: 0 until the share is used up, then a second at most."""
        if self._spent_ns < self._time_max_ns:
            return 0
        return max(0, self._began_ns + _SECOND_NS - now_ns)


class ConnectionLimit:
    """Open TCP connections, in the order of their last queries, and those of each network."""

    def __init__(self, limits: DnsLimits) -> None:
        self._limits = limits
        self._held: OrderedDict[object, Network] = OrderedDict()
        self._by_network: dict[Network, OrderedDict[object, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, connection: object, client: Address) -> object | None:
        """Add a connection. Returns the connection that must be closed for it, if any: one of its own network where
        that has too many."""
        network = network_around(client)
        self._held[connection] = network
        beside = self._by_network.setdefault(network, OrderedDict())
        beside[connection] = None
        if len(beside) > self._limits.network_connections_max:
            return next(iter(beside))
        return next(iter(self._held)) if len(self._held) > self._limits.connections_max else None

    def asked(self, connection: object) -> None:
        network = self._held.get(connection)
        if network is not None:
            self._held.move_to_end(connection)
            self._by_network[network].move_to_end(connection)

    def leave(self, connection: object) -> None:
        """Remove a connection; one that was removed before is ignored."""
        network = self._held.pop(connection, None)
        if network is not None:
            beside = self._by_network[network]
            del beside[connection]
            if not beside:
                del self._by_network[network]
