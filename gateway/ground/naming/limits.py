"""What strangers who ask for names may cost us, and cost others in our name. It answers nobody."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.ground.config import DnsConfig
from gateway.ground.naming.geography import Address, Network, network_of

_SECOND_NS = 1_000_000_000
_NETWORK_BITS = {4: 24, 6: 56}
"""Who shares so many bits is taken for one: nobody has a whole network to ask from for nothing."""


@dataclass(frozen=True, slots=True)
class DnsLimits:
    """The same for everybody who asks."""

    answers_per_s: int = 200
    """To one network (/24 or /56) by datagram; of those above it every second one is told to come by TCP."""
    networks_max: int = 16_384
    """So many are remembered; the one that asked longest ago is forgotten."""
    connections_max: int = 256
    """One more, and whoever has asked nothing for longest is let go."""
    network_connections_max: int = 32
    """Of one network; one more, and whoever of it has asked nothing for longest is let go."""
    idle_s: float = 10.0
    """A TCP client that sends nothing, or does not read, for so long is let go."""
    queries_per_connection: int = 1_000
    time_max_ns: int = 100_000_000
    """Of each second, what answering may take of our time; whoever asks then waits for the next."""

    @classmethod
    def from_config(cls, config: DnsConfig) -> DnsLimits:
        return cls(
            answers_per_s=config.answers_per_s,
            connections_max=config.connections_max,
            time_max_ns=config.time_max_ns,
        )


def network_around(client: Address) -> Network:
    """What is counted as one asker."""
    one = network_of(client)
    return one.supernet(new_prefix=_NETWORK_BITS[one.version])


class Allowance:
    """How many datagrams a network may still be sent now."""

    def __init__(self, limits: DnsLimits) -> None:
        self._limits = limits
        self._left: OrderedDict[Network, tuple[float, int]] = OrderedDict()
        """By network, what is left and when that was."""

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
    """What answering takes of our time in each second, counted from the first answer in it."""

    def __init__(self, time_max_ns: int) -> None:
        self._time_max_ns = time_max_ns
        self._began_ns = -_SECOND_NS
        self._spent_ns = 0

    def spend(self, now_ns: int, taken_ns: int) -> None:
        if now_ns >= self._began_ns + _SECOND_NS:
            self._began_ns, self._spent_ns = now_ns, 0
        self._spent_ns += taken_ns

    def rest_ns(self, now_ns: int) -> int:
        """How long to answer nobody: 0 until the share is used up, and a second at most then."""
        if self._spent_ns < self._time_max_ns:
            return 0
        return max(0, self._began_ns + _SECOND_NS - now_ns)


class Places:
    """Whose connections are open: in the order in which they last asked, and how many each network has."""

    def __init__(self, limits: DnsLimits) -> None:
        self._limits = limits
        self._held: OrderedDict[object, Network] = OrderedDict()
        self._by_network: dict[Network, OrderedDict[object, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, connection: object, client: Address) -> object | None:
        """Gives the one that has to go for it, if any: of its own network where that has as many as it may."""
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
        """No error if it left before."""
        network = self._held.pop(connection, None)
        if network is not None:
            beside = self._by_network[network]
            del beside[connection]
            if not beside:
                del self._by_network[network]
