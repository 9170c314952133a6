"""Orders of operators, and the documents that each one changes. Pure: no I/O."""

from __future__ import annotations

import re
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from controller import documents
from controller.documents import Changes, Freeze, GatewayOrder, ReplicaOrder, encode
from controller.registry import DocumentFault, RegisteredReplica, Registry, read_replica, registry_of
from controller.store.store import StoreUnusable
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, ReplicaId
from mesh.control.vocabulary import FEATURE_DOCUMENT_LENGTH_MAX, Announcement
from mesh.operators_config import Role
from mesh.values import ID_PATTERN, host_address

PARAMETER_SECTIONS = (
    "placement",
    "pushing",
    "queue",
    "attempt",
    "observation",
    "token_budget",
    "resume",
    "threshold",
    "tenants",
    "sharing",
    "classes",
    "shares",
    "cache_digests",
    "kv_events",
    "leaving",
)
"""Sections that can be set for all gateways: those that a gateway takes from a snapshot."""
PARAMETERS_BYTES_MAX = 64 * 1024
REASON_LENGTH_MAX = 500
_NAMES_MAX = 1000


class OrderRefused(Exception):
    """The order cannot be carried out; the message says why. Nothing has changed."""


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    pass


class AddReplica(_Order, frozen=True, tag="replica-add"):
    """Add a replica that no region file names, or bring back one that was removed."""

    replica: str
    home: str = ""
    document: str = ""
    """Keys of a region file, as JSON; empty for a replica that is known."""


class DrainReplica(_Order, frozen=True, tag="replica-drain"):
    """Drain a replica: no gateway is to serve it, until it is undrained."""

    replica: str


class UndrainReplica(_Order, frozen=True, tag="replica-undrain"):
    """Have a drained replica served again."""

    replica: str


class RemoveReplica(_Order, frozen=True, tag="replica-remove"):
    """Remove a replica, even if a gateway still announces it."""

    replica: str


class MoveReplicas(_Order, frozen=True, tag="replicas-move"):
    """Give replicas to a gateway, as long as it lives and residency allows. Without one they are their homes' again."""

    replicas: tuple[str, ...]
    to: str = ""


class AddGateway(_Order, frozen=True, tag="gateway-add"):
    """Bring back a gateway that was removed, or register one that has yet to announce itself."""

    gateway: str
    region: str = ""
    jurisdiction: str = ""
    client_addresses: tuple[str, ...] = ()
    health_url: str = ""
    latitude: float | None = None
    longitude: float | None = None


class DrainGateway(_Order, frozen=True, tag="gateway-drain"):
    """Drain a gateway: its clients are sent elsewhere, and its replicas go to others, until it is undrained."""

    gateway: str


class UndrainGateway(_Order, frozen=True, tag="gateway-undrain"):
    """Give a drained gateway clients and replicas again."""

    gateway: str


class RemoveGateway(_Order, frozen=True, tag="gateway-remove"):
    """Remove a gateway, which may not come back by itself."""

    gateway: str


class SetPolicy(_Order, frozen=True, tag="policy-set"):
    """Narrow what a region's own policy allows."""

    policy: ResidencyPolicy


class ClearPolicy(_Order, frozen=True, tag="policy-clear"):
    region: str


class SetParameters(_Order, frozen=True, tag="parameters-set"):
    sections: dict[str, dict[str, Any]]


class ClearParameters(_Order, frozen=True, tag="parameters-clear"):
    pass


class SetPrices(_Order, frozen=True, tag="prices-set"):
    """Set a price list, in the form of a prices file. The client that gives the order, and each gateway, check whether
    it can be read."""

    prices: dict[str, Any]


class ClearPrices(_Order, frozen=True, tag="prices-clear"):
    pass


class FreezeAll(_Order, frozen=True, tag="freeze"):
    reason: str = ""


class Unfreeze(_Order, frozen=True, tag="unfreeze"):
    pass


class Import(_Order, frozen=True, tag="import"):
    """Replace all orders of operators by exported ones, and add the gateways that were known then and are not now."""

    documents: dict[str, str]


Order = (
    AddReplica
    | DrainReplica
    | UndrainReplica
    | RemoveReplica
    | MoveReplicas
    | AddGateway
    | DrainGateway
    | UndrainGateway
    | RemoveGateway
    | SetPolicy
    | ClearPolicy
    | SetParameters
    | ClearParameters
    | SetPrices
    | ClearPrices
    | FreezeAll
    | Unfreeze
    | Import
)


def role_needed(order: Order) -> Role:
    """Return the role that an order needs: draining, freezing and their undoing need less than changes that are harder
    to undo."""
    match order:
        case DrainReplica() | UndrainReplica() | DrainGateway() | UndrainGateway() | FreezeAll() | Unfreeze():
            return Role.DRAIN
        case (
            AddReplica()
            | AddGateway()
            | RemoveReplica()
            | MoveReplicas()
            | RemoveGateway()
            | SetPolicy()
            | ClearPolicy()
            | SetParameters()
            | ClearParameters()
            | SetPrices()
            | ClearPrices()
            | Import()
        ):
            return Role.CHANGE
        case _:
            assert_never(order)


def changes_of(order: Order, registry: Registry) -> Changes:
    """Return the changes to write for an order. Raises OrderRefused."""
    match order:
        case AddReplica() | DrainReplica() | UndrainReplica() | RemoveReplica() | MoveReplicas():
            return _of_replicas(order, registry)
        case AddGateway():
            return _add_gateway(order, registry)
        case DrainGateway() | UndrainGateway():
            _known_gateway(order.gateway, registry)
            return _gateway_order(registry, order.gateway, is_drained=isinstance(order, DrainGateway))
        case RemoveGateway():
            return _remove_gateway(_known_gateway(order.gateway, registry), registry)
        case SetPolicy() | ClearPolicy():
            return _of_policies(order, registry)
        case SetParameters() | ClearParameters():
            return {documents.PARAMETERS: _parameters(order) if isinstance(order, SetParameters) else None}
        case SetPrices() | ClearPrices():
            return {documents.PRICES: _prices(order) if isinstance(order, SetPrices) else None}
        case FreezeAll() | Unfreeze():
            freeze = Freeze(order.reason[:REASON_LENGTH_MAX] or "by order") if isinstance(order, FreezeAll) else None
            return {documents.FREEZE: None if freeze is None else encode(freeze)}
        case Import():
            return _import(order, registry)
        case _:
            assert_never(order)


# Replicas


def _of_replicas(
    order: AddReplica | DrainReplica | UndrainReplica | RemoveReplica | MoveReplicas, registry: Registry
) -> Changes:
    match order:
        case AddReplica() if order.document:
            return _add_replica(order, registry)
        case AddReplica():
            known = _known_replica(order.replica, registry)
            return _replica_order(known, registry, is_removed=False)
        case DrainReplica() | UndrainReplica():
            known = _known_replica(order.replica, registry)
            return _replica_order(known, registry, is_drained=isinstance(order, DrainReplica))
        case RemoveReplica():
            known = _known_replica(order.replica, registry)
            if not known.is_announced:
                return {documents.REPLICA_ORDER + known.replica_id: None}
            return _replica_order(known, registry, is_removed=True, pinned_to=None)
        case MoveReplicas():
            return _move(order, registry)
        case _:
            assert_never(order)


def _add_replica(order: AddReplica, registry: Registry) -> Changes:
    home = registry.gateways.get(GatewayId(order.home))
    if home is None:
        raise OrderRefused(f"gateway {order.home!r}, whose it would be, is not registered")
    try:
        replica_id, document = read_replica(order.document, home.place, registry.regions)
    except DocumentFault as fault:
        raise OrderRefused(str(fault)) from fault
    if replica_id != order.replica:
        raise OrderRefused(f"it calls itself {replica_id}, not {order.replica}")
    known = registry.replicas.get(replica_id)
    if known is not None and (known.is_announced or known.home != home.gateway_id):
        raise OrderRefused(f"replica {replica_id} is {known.home}'s already")
    return {documents.REPLICA_ORDER + replica_id: encode(ReplicaOrder(home.gateway_id, document))}


def _move(order: MoveReplicas, registry: Registry) -> Changes:
    if not 0 < len(order.replicas) <= _NAMES_MAX:
        raise OrderRefused(f"1 to {_NAMES_MAX} replicas can be moved at once")
    to = _known_gateway(order.to, registry) if order.to else None
    changes: Changes = {}
    for name in order.replicas:
        known = _known_replica(name, registry)
        changes |= _replica_order(known, registry, pinned_to=None if to == known.home else to)
    return changes


def _replica_order(known: RegisteredReplica, registry: Registry, **ordered: Any) -> Changes:
    """Return the change of a replica's order; an order without any effect is deleted."""
    before = registry.replica_orders.get(known.replica_id)
    if before is None or before.home != known.home:
        before = ReplicaOrder(known.home)
    after = replace(before, **ordered)
    is_empty = after == ReplicaOrder(known.home)
    return {documents.REPLICA_ORDER + known.replica_id: None if is_empty else encode(after)}


def _known_replica(name: str, registry: Registry) -> RegisteredReplica:
    known = registry.replicas.get(ReplicaId(name))
    if known is None:
        raise OrderRefused(f"replica {name!r} is not registered")
    return known


# Gateways


def _add_gateway(order: AddGateway, registry: Registry) -> Changes:
    if ID_PATTERN.fullmatch(order.gateway) is None:
        raise OrderRefused(f"{order.gateway!r} should be 1 to 64 letters, digits, dots, dashes or underscores")
    gateway_id = GatewayId(order.gateway)
    if not order.region:
        if gateway_id not in registry.gateways and not registry.is_removed(gateway_id):
            raise OrderRefused(f"gateway {gateway_id} is not known: say in which region and jurisdiction it is")
        return _gateway_order(registry, gateway_id, is_removed=False)
    if any(ID_PATTERN.fullmatch(each) is None for each in (order.region, order.jurisdiction)):
        raise OrderRefused("region and jurisdiction are written together, of letters, digits, dots and dashes")
    place = Place(RegionName(order.region), Jurisdiction(order.jurisdiction))
    if fault := registry.regions.place_fault(place):
        raise OrderRefused(fault)
    if gateway_id in registry.announced:
        raise OrderRefused(f"gateway {gateway_id} has announced itself: its own region file says where it is")
    try:
        addresses = tuple(map(host_address, order.client_addresses))
    except ValueError as error:
        raise OrderRefused(f"client_addresses: {error}") from error
    said = Announcement(addresses, health_url=order.health_url, latitude=order.latitude, longitude=order.longitude)
    return {documents.GATEWAY_ORDER + gateway_id: encode(GatewayOrder(place=place, announcement=said))}


def _remove_gateway(gateway_id: GatewayId, registry: Registry) -> Changes:
    """Remove a gateway with all that rests on it: its own replicas, and other replicas' moves to it."""
    changes: Changes = {
        documents.ANNOUNCED + gateway_id: None,
        documents.GATEWAY_ORDER + gateway_id: encode(GatewayOrder(is_removed=True)),
    }
    for name, order in registry.replica_orders.items():
        if order.home == gateway_id:
            changes[documents.REPLICA_ORDER + name] = None
        elif order.pinned_to == gateway_id:
            changes |= _unpinned(name, order)
    return changes


def _unpinned(name: str, order: ReplicaOrder) -> Changes:
    after = replace(order, pinned_to=None)
    return {documents.REPLICA_ORDER + name: None if after == ReplicaOrder(order.home) else encode(after)}


def _gateway_order(registry: Registry, gateway_id: str, **ordered: Any) -> Changes:
    after = replace(registry.gateway_orders.get(gateway_id, GatewayOrder()), **ordered)
    return {documents.GATEWAY_ORDER + gateway_id: None if after == GatewayOrder() else encode(after)}


def _known_gateway(name: str, registry: Registry) -> GatewayId:
    if GatewayId(name) not in registry.gateways:
        raise OrderRefused(f"gateway {name!r} is not registered")
    return GatewayId(name)


# Policies, parameters and prices


def _of_policies(order: SetPolicy | ClearPolicy, registry: Registry) -> Changes:
    if isinstance(order, ClearPolicy):
        if RegionName(order.region) not in registry.narrowings:
            raise OrderRefused(f"there is no policy for {order.region}")
        return {documents.NARROWING + order.region: None}
    policy, place = order.policy, order.policy.place
    if fault := registry.regions.place_fault(place):
        raise OrderRefused(fault)
    if place.region not in (each.place.region for each in registry.gateways.values()):
        raise OrderRefused(f"no gateway of region {place.region} is registered")
    return {documents.NARROWING + place.region: encode(policy)}


def _parameters(order: SetParameters) -> bytes:
    if unknown := sorted(set(order.sections) - set(PARAMETER_SECTIONS)):
        raise OrderRefused(f"{', '.join(unknown)}: only {', '.join(PARAMETER_SECTIONS)} can be set for all gateways")
    text = encode(order.sections)
    if len(text) > PARAMETERS_BYTES_MAX:
        raise OrderRefused(f"parameters have {len(text)} bytes, and at most {PARAMETERS_BYTES_MAX}")
    return text


def _prices(order: SetPrices) -> bytes:
    text = encode(order.prices)
    if len(text) > FEATURE_DOCUMENT_LENGTH_MAX:
        raise OrderRefused(f"prices have {len(text)} bytes, and at most {FEATURE_DOCUMENT_LENGTH_MAX}")
    return text


_EXPORTED = (*documents.ORDERED, documents.ANNOUNCED)
_NAME = re.compile(r"[A-Za-z0-9._@/-]{1,200}")


def export_of(texts: dict[str, bytes]) -> dict[str, str]:
    """Return a store's documents with which another controller can begin."""
    return {name: text.decode() for name, text in sorted(texts.items()) if name.startswith(_EXPORTED)}


def _import(order: Import, registry: Registry) -> Changes:
    """Replace the operators' orders whole. Of the gateways, only unknown ones are added: the others' own announcements
    are newer."""
    for name in order.documents:
        if not name.startswith(_EXPORTED) or _NAME.fullmatch(name) is None:
            raise OrderRefused(f"{name[:100]!r} is no document that can be imported")
    texts = {name: text.encode() for name, text in order.documents.items()}
    try:
        registry_of(texts, registry.regions)
    except StoreUnusable as error:
        raise OrderRefused(str(error)) from error
    ordered = (name for name in registry.texts if name.startswith(documents.ORDERED))
    changes: Changes = {name: None for name in ordered if name not in texts}
    changes |= {name: text for name, text in texts.items() if name.startswith(documents.ORDERED)}
    changes |= {
        name: text
        for name, text in texts.items()
        if name.startswith(documents.ANNOUNCED) and name not in registry.texts
    }
    return changes
