"""What the mesh's one name says, to whom: plain values that whoever decides makes, and any DNS server of ours answers
from."""

from __future__ import annotations

from gateway.core.value import value
from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName


@value
class Area:
    """What clients of one region are told. Areas differ in where a client is, never in who it is."""

    region: RegionName
    jurisdiction: Jurisdiction
    gateways: tuple[GatewayId, ...]
    addresses: tuple[str, ...]
    """IPv4 and IPv6, in no order that means anything."""
    why: str = ""
    """Why there is nobody, where there is nobody."""
    networks: tuple[str, ...] = ()
    """CIDRs of the clients who are there."""
    is_closed: bool = False
    """Its jurisdiction is closed: clients there are told of nobody in another one."""


@value
class NameServer:
    """Who answers for the zone."""

    name: str
    addresses: tuple[str, ...] = ()


@value
class RecordTree:
    """Everything that the one name says, to whomever asks from wherever."""

    version: int
    ttl_s: int
    areas: tuple[Area, ...]
    """By region, in the order of their names."""
    anywhere: tuple[str, ...]
    """For clients of whom nobody can say where they are."""
    zone: str = ""
    """Fully qualified, with the final dot; empty: whoever answers has been told by somebody else."""
    name_servers: tuple[NameServer, ...] = ()
    port: int = 443
    """Of the clients' listeners, for SRV and HTTPS records."""
    tls: bool = True
    """Do they speak TLS? An HTTPS record says so, and clients act on that."""
