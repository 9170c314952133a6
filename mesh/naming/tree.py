"""Record tree of the mesh's name, as plain values: the controller makes it, and every DNS server of the mesh answers
from it.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName

FURTHER_MAX = 3
"""Most further gateways that an answer names. It has eight addresses of an IP version at most, and the nearest gateways
need most of them."""


class Area(Struct, frozen=True):
    """Answers for clients of one region. Areas differ in where a client is, never in which client it is."""

    region: RegionName
    jurisdiction: Jurisdiction
    gateways: tuple[GatewayId, ...]
    addresses: tuple[str, ...]
    """IPv4 and IPv6 addresses, those of the nearest region's gateways first. Clients are promised no order."""
    why: str = ""
    """Reason why there are no addresses, where there are none."""
    networks: tuple[str, ...] = ()
    """CIDRs of the clients in this region."""
    is_closed: bool = False
    """The jurisdiction is closed: clients there are given no addresses of another one."""
    further: tuple[str, ...] = ()
    """Addresses, among all of them, of gateways in further regions, for clients that reach none of the nearest: at most
    FURTHER_MAX of each IP version."""


class NameServer(Struct, frozen=True):
    """Name server of the zone."""

    name: str
    addresses: tuple[str, ...] = ()


class RecordTree(Struct, frozen=True):
    """Complete content of the mesh's name, for all clients."""

    version: int
    ttl_s: int
    areas: tuple[Area, ...]
    """Areas in the order of their regions' names."""
    anywhere: tuple[str, ...]
    """Addresses for clients whose region is unknown."""
    zone: str = ""
    """Fully qualified name with the final dot; empty where another configuration names the zone."""
    name_servers: tuple[NameServer, ...] = ()
    port: int = 443
    """Port of the clients' listeners, for SRV and HTTPS records."""
    tls: bool = True
    """The clients' listeners speak TLS. An HTTPS record says so, and clients act on that."""
