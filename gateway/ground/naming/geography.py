"""Where a client is, as far as its address tells: by the networks that an operator has written down for each region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from gateway.core.value import value
from gateway.core.vocabulary import RegionName

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@value
class Whereabouts:
    """A region, and the network for which that is so: an answer for one client of it is good for all."""

    region: RegionName | None
    network: Network


class Networks:
    """Which network lies in which region; of several that hold an address, the narrowest."""

    def __init__(self, regions: Mapping[RegionName, Iterable[str]]) -> None:
        """Raises ValueError for what is no network, and for one that two regions claim."""
        self._regions: dict[Network, RegionName] = {}
        for region, networks in regions.items():
            for text in networks:
                network = ip_network(text)
                if self._regions.setdefault(network, region) != region:
                    raise ValueError(f"{network} is said to be in {self._regions[network]} and in {region}")
        lengths = {(network.version, network.prefixlen) for network in self._regions}
        self._lengths = {version: sorted({n for v, n in lengths if v == version}, reverse=True) for version in (4, 6)}

    def whereabouts(self, client: Network) -> Whereabouts:
        """Of a whole network of clients, as ECS tells it, or of one address. O(lengths of prefixes)."""
        for length in self._lengths[client.version]:
            if length > client.prefixlen:
                continue
            network = client.supernet(new_prefix=length)
            region = self._regions.get(network)
            if region is not None:
                return Whereabouts(region, self._narrowed(network, client))
        everywhere = client.supernet(new_prefix=0)
        return Whereabouts(None, self._narrowed(everywhere, client))

    def _narrowed(self, network: Network, client: Network) -> Network:
        """Less than the network where a part of it lies elsewhere: then what is said holds for the client alone."""
        deeper = any(length > network.prefixlen for length in self._lengths[network.version])
        return client if deeper else network


def network_of(address: Address) -> Network:
    """The narrowest: one client. An IPv4 client that came over IPv6 is an IPv4 client."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return ip_network(address)
