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


@value
class RecordTree:
    """Everything that the one name says, to whomever asks from wherever."""

    version: int
    ttl_s: int
    areas: tuple[Area, ...]
    """By region, in the order of their names."""
    anywhere: tuple[str, ...]
    """For clients of whom nobody can say where they are."""
