"""The documents in the store: their names, and what each one holds. Everything the controller must not forget is one of
these, and nothing here decides what is put in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from controller.store.store import StoreUnusable
from gateway.core.residency import ResidencyPolicy
from gateway.core.value import value
from gateway.core.vocabulary import GatewayId, Place, RegionName, ReplicaId
from gateway.ground.control.vocabulary import Announcement

ANNOUNCED = "announced/"
GATEWAY_ORDER = "ordered/gateway/"
REPLICA_ORDER = "ordered/replica/"
NARROWING = "narrowing/"
"""By region, what an operator's policy leaves of the region's own."""
POLICY = "policy/"
"""By region, the last one that it lived by."""
OWNER = "owner/"
DOWN = "down/"
"""By gateway, those that are down: the next controller does not begin by naming the dead."""
ASSIGNMENT = "assignment"
PARAMETERS = "parameters"
PRICES = "prices"
FREEZE = "freeze"
RECORDS = "records"

ORDERED = (GATEWAY_ORDER, REPLICA_ORDER, NARROWING, PARAMETERS, PRICES, FREEZE)
"""What operators have ordered: nobody else can say it again."""

Changes = dict[str, bytes | None]
"""What is to be put, and what is to be deleted, all together or not at all."""


@value
class Announced:
    """What a gateway last said of itself."""

    place: Place
    announcement: Announcement
    policy: ResidencyPolicy
    """The region's own, not narrowed by anybody."""
    number: int
    """Gateways are numbered as they come. Of two that announce the same replica, it is the earlier one's."""


@value
class GatewayOrder:
    """What an operator said of a gateway."""

    is_drained: bool = False
    is_removed: bool = False
    """It may not come back by itself."""
    place: Place | None = None
    """With what follows: it was added before it ever announced itself."""
    announcement: Announcement = Announcement()


@value
class ReplicaOrder:
    """What an operator said of a replica."""

    home: GatewayId
    document: str = ""
    """With the keys of a region file: of one that was added. Empty: its home announces it."""
    is_drained: bool = False
    is_removed: bool = False
    pinned_to: GatewayId | None = None


@value
class Freeze:
    reason: str


_Kind = TypeVar("_Kind")


def encode(content: object) -> bytes:
    return msgspec.json.encode(content, order="deterministic")


def decode(name: str, document: bytes, kind: type[_Kind]) -> _Kind:
    """Raises StoreUnusable: what is not understood is not guessed at."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreUnusable(f"document {name} in the store cannot be read: {error}") from error


def under(prefix: str, documents: Mapping[str, _Kind]) -> dict[str, _Kind]:
    """Those of one kind, by what they are of."""
    return {name.removeprefix(prefix): each for name, each in documents.items() if name.startswith(prefix)}


def policies_in(documents: Mapping[str, bytes]) -> dict[RegionName, ResidencyPolicy]:
    found = under(POLICY, documents)
    return {RegionName(region): decode(POLICY + region, each, ResidencyPolicy) for region, each in found.items()}


def owners_in(documents: Mapping[str, bytes]) -> dict[ReplicaId, GatewayId]:
    return {ReplicaId(name): GatewayId(each.decode()) for name, each in under(OWNER, documents).items()}


def down_in(documents: Mapping[str, bytes]) -> set[GatewayId]:
    return {GatewayId(name) for name in under(DOWN, documents)}
