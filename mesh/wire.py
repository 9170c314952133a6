"""Converts and checks parts of messages that several services of the mesh share. Lengths, words and numbers from the
wire are bounded here; a part that breaks a bound raises WireError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.core.vocabulary import (
    GatewayId,
    Jurisdiction,
    Place,
    PlaceRule,
    PoolName,
    RegionName,
    RegionsWithin,
    ReplicaId,
)
from mesh.values import ID_PATTERN, POOL_NAME_PATTERN, REPLICA_ID_PATTERN, host_address
from protos.mesh.v1 import peer_pb2 as pb

TEXT_LENGTH_MAX = 1024
KEY_LENGTH_MAX = 256
LIST_LENGTH_MAX = 4096
REGIONS_WITHIN_MAX = 64
"""Most entries of `regions_within` in one rule; narrowing three rules that have none of their own leaves six."""

MICROSECOND_NS = 1_000


class WireError(ValueError):
    """Message that another program of the mesh must not have sent."""


def require(holds: bool, fault: str) -> None:
    if not holds:
        raise WireError(fault)


def place_to_pb(place: Place) -> pb.Place:
    return pb.Place(region=place.region, jurisdiction=place.jurisdiction)


def read_place(message: pb.Place, what: str) -> Place:
    return Place(RegionName(read_id(message.region, what)), Jurisdiction(read_id(message.jurisdiction, what)))


def rule_to_pb(rule: PlaceRule) -> pb.PlaceRule:
    return pb.PlaceRule(
        jurisdictions=sorted(rule.jurisdictions),
        regions=sorted(rule.regions),
        denied_regions=sorted(rule.denied_regions),
        regions_within=[
            pb.RegionsWithin(regions=sorted(each.regions), jurisdictions=sorted(each.jurisdictions))
            for each in rule.regions_within
        ],
    )


def read_rule(message: pb.PlaceRule, what: str = "") -> PlaceRule:
    """Read a rule. `what` names the message that it is part of."""
    prefix = f"{what}." if what else ""
    return PlaceRule(
        jurisdictions=frozenset(map(Jurisdiction, _ids(message.jurisdictions, f"{prefix}jurisdictions"))),
        regions=frozenset(map(RegionName, _ids(message.regions, f"{prefix}regions"))),
        denied_regions=frozenset(map(RegionName, _ids(message.denied_regions, f"{prefix}denied_regions"))),
        regions_within=_regions_within(message.regions_within, f"{prefix}regions_within"),
    )


def _regions_within(messages: Collection[pb.RegionsWithin], what: str) -> tuple[RegionsWithin, ...]:
    if not messages:
        return ()
    require_few(messages, what, REGIONS_WITHIN_MAX)
    return tuple(
        RegionsWithin(
            frozenset(map(RegionName, _ids(each.regions, what))),
            frozenset(map(Jurisdiction, _ids(each.jurisdictions, what))),
        )
        for each in messages
    )


def read_id(text: str, what: str) -> str:
    require(ID_PATTERN.fullmatch(text) is not None, f"{what} is not an id")
    return text


def read_gateway_id(text: str, what: str) -> GatewayId:
    return GatewayId(read_id(text, what))


def read_replica_id(text: str, what: str) -> ReplicaId:
    require(REPLICA_ID_PATTERN.fullmatch(text) is not None, f"{what} is not a replica's id")
    return ReplicaId(text)


def read_pool_name(text: str, what: str) -> PoolName:
    require(POOL_NAME_PATTERN.fullmatch(text) is not None, f"{what} is not a pool's name")
    return PoolName(text)


def read_address(text: str, what: str) -> str:
    """Read the IP address of a host that clients can connect to."""
    try:
        return host_address(text)
    except ValueError as error:
        raise WireError(f"{what}: {error}") from error


def read_key(text: str, what: str) -> str:
    require(0 < len(text) <= KEY_LENGTH_MAX and text.isprintable(), f"{what} is empty, too long or not printable")
    return text


def read_text(text: str, what: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    require(len(text) <= length_max, f"{what} is too long")
    return text


def require_few(items: Collection[object], what: str, length_max: int = LIST_LENGTH_MAX) -> None:
    require(len(items) <= length_max, f"too many {what}")


def require_once(items: Iterable[str], what: str) -> None:
    """Raise WireError where two of the items are equal."""
    seen: set[str] = set()
    for item in items:
        require(item not in seen, f"{what} {item} stands there twice")
        seen.add(item)


def _ids(texts: Collection[str], what: str) -> list[str]:
    require_few(texts, what)
    return [read_id(text, what) for text in texts]
