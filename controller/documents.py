"""Documents in the store: their names and contents. Everything that the controller must not forget is one of these; the
module does not decide what is put in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from controller.store.store import StoreUnusable
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Place, RegionName, ReplicaId
from mesh.control.vocabulary import Announcement

ANNOUNCED = "announced/"
GATEWAY_ORDER = "ordered/gateway/"
REPLICA_ORDER = "ordered/replica/"
NARROWING = "narrowing/"
"""Policy by which an operator narrows a region's own, by region."""
POLICY = "policy/"
"""Last policy in force in a region, by region."""
OWNER = "owner/"
DOWN = "down/"
"""Gateways that are down, by gateway: so the next controller does not begin by publishing them in DNS."""
ASSIGNMENT = "assignment"
PARAMETERS = "parameters"
PRICES = "prices"
FREEZE = "freeze"
RECORDS = "records"

ORDERED = (GATEWAY_ORDER, REPLICA_ORDER, NARROWING, PARAMETERS, PRICES, FREEZE)
"""Documents of operators' orders, which no other source can supply again."""

Changes = dict[str, bytes | None]
"""Documents to put, and those to delete (None), all together or not at all."""


class Announced(Struct, frozen=True):
    """Last announcement of a gateway."""

    place: Place
    announcement: Announcement
    policy: ResidencyPolicy
    """Policy of the region itself, not narrowed."""
    number: int
    """Number of the gateway in order of arrival. Of two that announce the same replica, the earlier one has it."""


class GatewayOrder(Struct, frozen=True):
    """Orders of an operator about a gateway."""

    is_drained: bool = False
    is_removed: bool = False
    """The gateway may not come back by itself."""
    place: Place | None = None
    """Place and, below, announcement of a gateway that was added before it ever announced itself."""
    announcement: Announcement = Announcement()


class ReplicaOrder(Struct, frozen=True):
    """Orders of an operator about a replica."""

    home: GatewayId
    document: str = ""
    """Keys of a region file, as JSON, of a replica that was added; empty: its home announces it."""
    is_drained: bool = False
    is_removed: bool = False
    pinned_to: GatewayId | None = None


class Freeze(Struct, frozen=True):
    reason: str


_Kind = TypeVar("_Kind")


def encode(content: object) -> bytes:
    return msgspec.json.encode(content, order="deterministic")


def decode(name: str, document: bytes, kind: type[_Kind]) -> _Kind:
    """Decode a document. Raises StoreUnusable where it is not understood."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreUnusable(f"document {name} in the store cannot be read: {error}") from error


def under(prefix: str, documents: Mapping[str, _Kind]) -> dict[str, _Kind]:
    """Return the documents of one kind, keyed by the part of the name after the prefix."""
    return {name.removeprefix(prefix): each for name, each in documents.items() if name.startswith(prefix)}


def policies_in(documents: Mapping[str, bytes]) -> dict[RegionName, ResidencyPolicy]:
    found = under(POLICY, documents)
    return {RegionName(region): decode(POLICY + region, each, ResidencyPolicy) for region, each in found.items()}


def owners_in(documents: Mapping[str, bytes]) -> dict[ReplicaId, GatewayId]:
    return {ReplicaId(name): GatewayId(each.decode()) for name, each in under(OWNER, documents).items()}


def down_in(documents: Mapping[str, bytes]) -> set[GatewayId]:
    return {GatewayId(name) for name in under(DOWN, documents)}
