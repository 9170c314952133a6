"""Registered gateways and replicas: the gateways' announcements, with operators' orders on top.

A registry is read from documents and never changes: a change makes another one. It decides neither which gateways live
nor which one owns a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from controller import documents
from controller.core.vocabulary import GatewayEntry, Location, ReplicaEntry
from controller.documents import Announced, Changes, Freeze, GatewayOrder, ReplicaOrder, decode, encode, under
from controller.store.store import DOCUMENT_BYTES_MAX
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, ReplicaId
from mesh.control.vocabulary import (
    CONNECTOR_ABILITY,
    DECODE_POLICY_ABILITY,
    Announcement,
    Hello,
    PeerGrant,
)
from mesh.regions import announcement_fault
from mesh.values import REPLICA_ID_PATTERN

REPLICA_DOCUMENT_BYTES_MAX = 16 * 1024
_NAME_LENGTH_MAX = 64
_DIGEST_BYTES = 8
_NO_ORDER = GatewayOrder()

_Kind = TypeVar("_Kind")


class Registered(Struct, frozen=True):
    """A gateway, as announced by itself or added by an operator."""

    gateway_id: GatewayId
    place: Place
    announcement: Announcement
    number: int
    is_drained: bool
    has_announced: bool

    @property
    def entry(self) -> GatewayEntry:
        said = self.announcement
        is_located = said.latitude is not None and said.longitude is not None
        location = Location(said.latitude, said.longitude) if is_located else None  # type: ignore[arg-type] # just asked
        abilities = frozenset(said.abilities)
        return GatewayEntry(
            self.gateway_id, self.place, said.client_addresses, location, self.is_drained, abilities, self.has_announced
        )

    @property
    def grant(self) -> PeerGrant | None:
        """Place and address for peers; None where the gateway announces no address for them."""
        address = self.announcement.peer_address
        return PeerGrant(self.gateway_id, self.place, address) if address else None


class RegisteredReplica(Struct, frozen=True):
    replica_id: ReplicaId
    home: GatewayId
    home_place: Place
    document: str
    """Description as JSON, with region and jurisdiction."""
    is_lent: bool
    """Other gateways may serve the replica, since operators say where replicas of its region stand."""
    is_announced: bool
    """The home announces the replica, and serves it unless told otherwise."""
    is_drained: bool = False
    is_removed: bool = False
    pinned_to: GatewayId | None = None

    @property
    def is_served(self) -> bool:
        return not self.is_drained and not self.is_removed


class DocumentFault(ValueError):
    """A replica's document cannot be used; the message says why."""


class AnnouncementRefused(Exception):
    """A gateway's announcement is not possible; the message says why."""


class PlaceRefused(AnnouncementRefused):
    """A gateway announces a place that the operators' table does not give it."""


class _Table(Generic[_Kind]):
    """Documents of one kind, keyed by the part of the name after the prefix."""

    def __init__(self, prefix: str, read: Callable[[str, bytes], _Kind], texts: Mapping[str, bytes]) -> None:
        self._prefix = prefix
        self._read = read
        self.texts = under(prefix, texts)
        self.values = {name: read(prefix + name, text) for name, text in self.texts.items()}

    def changed(self, texts: Mapping[str, bytes]) -> _Table[_Kind]:
        """Return the table with other documents. Unchanged ones are not read again: a large gateway's announcement
        takes time."""
        table = _Table(self._prefix, self._read, {})
        table.texts = under(self._prefix, texts)
        table.values = {
            name: self.values[name] if self.texts.get(name) is text else self._read(self._prefix + name, text)
            for name, text in table.texts.items()
        }
        return table


class _Described(Struct, frozen=True):
    """A replica that can be used."""

    document: str
    """The complete document."""
    is_lent: bool


class _Said(Struct, frozen=True):
    """Announcement of a gateway, with its replicas read."""

    announced: Announced
    replicas: dict[ReplicaId, _Described | DocumentFault]


class _Tables(Struct, frozen=True):
    said: _Table[_Said]
    gateway_orders: _Table[GatewayOrder]
    replica_orders: _Table[ReplicaOrder]
    narrowings: _Table[ResidencyPolicy]

    def changed(self, texts: Mapping[str, bytes]) -> _Tables:
        return _Tables(
            self.said.changed(texts),
            self.gateway_orders.changed(texts),
            self.replica_orders.changed(texts),
            self.narrowings.changed(texts),
        )


class Registry:
    """One stored state of the registered mesh. It never changes, and is shared freely."""

    def __init__(self, texts: Mapping[str, bytes], tables: _Tables, regions: RegionTable) -> None:
        self.regions = regions
        """Table of the operators: announced places count only within it."""
        self.texts = texts
        """Documents from which the registry was read."""
        self._tables = tables
        self.gateway_orders = tables.gateway_orders.values
        self.replica_orders = tables.replica_orders.values
        self.narrowings = {RegionName(region): each for region, each in tables.narrowings.values.items()}
        self.parameters = texts.get(documents.PARAMETERS, b"").decode()
        self.prices = texts.get(documents.PRICES, b"").decode()
        freeze = texts.get(documents.FREEZE)
        self.freeze = None if freeze is None else decode(documents.FREEZE, freeze, Freeze)

    def changed(self, changes: Mapping[str, bytes | None]) -> Registry:
        """Return another registry, with these documents put and deleted."""
        texts = {name: each for name, each in self.texts.items() if name not in changes}
        texts |= {name: each for name, each in changes.items() if each is not None and _is_ours(name)}
        return Registry(texts, self._tables.changed(texts), self.regions)

    @cached_property
    def announced(self) -> dict[GatewayId, Announced]:
        return {GatewayId(name): each.announced for name, each in self._tables.said.values.items()}

    # Gateways and replicas

    @cached_property
    def gateways(self) -> dict[GatewayId, Registered]:
        """Gateways in the order of their arrival; those added by an operator and not heard from yet come last."""
        found = [
            Registered(
                name,
                each.place,
                each.announcement,
                each.number,
                self.gateway_orders.get(name, _NO_ORDER).is_drained,
                has_announced=True,
            )
            for name, each in sorted(self.announced.items(), key=lambda item: (item[1].number, item[0]))
            if not self.is_removed(name) and not self.regions.place_fault(each.place)
        ]
        found += [
            Registered(GatewayId(name), each.place, each.announcement, -1, each.is_drained, has_announced=False)
            for name, each in sorted(self.gateway_orders.items())
            if each.place is not None and not each.is_removed and name not in self.announced
            if not self.regions.place_fault(each.place)
        ]
        return {each.gateway_id: each for each in found}

    @cached_property
    def replicas(self) -> dict[ReplicaId, RegisteredReplica]:
        """Replicas, with those that are drained or removed."""
        found: dict[ReplicaId, RegisteredReplica] = {}
        for replica_id, home, described, is_announced in self._claims():
            if replica_id in found or isinstance(described, DocumentFault):
                continue
            order = self.replica_orders.get(replica_id)
            ordered = order if order is not None and order.home == home else ReplicaOrder(home)
            found[replica_id] = RegisteredReplica(
                replica_id,
                home,
                self.gateways[home].place,
                described.document,
                described.is_lent,
                is_announced,
                ordered.is_drained,
                ordered.is_removed,
                ordered.pinned_to,
            )
        return found

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Registered items that cannot be used, in words."""
        homes: dict[ReplicaId, GatewayId] = {}
        faults: list[str] = list(self._misplaced_gateways())
        for replica_id, home, described, _ in self._claims():
            if isinstance(described, DocumentFault):
                faults.append(f"{home}: {described}")
            elif (first := homes.setdefault(replica_id, home)) != home:
                faults.append(f"{home}: replica {replica_id} is {first}'s already")
        return tuple(faults)

    def _misplaced_gateways(self) -> Iterator[str]:
        """Yield faults of stored gateways whose place is not in the table."""
        places = {name: each.place for name, each in self.gateway_orders.items() if each.place is not None}
        places |= {name: each.place for name, each in self.announced.items()}
        for name, where in sorted(places.items()):
            if not self.is_removed(GatewayId(name)) and (fault := self.regions.place_fault(where)):
                yield f"{name}: {fault}"

    def _claims(self) -> Iterator[tuple[ReplicaId, GatewayId, _Described | DocumentFault, bool]]:
        """Yield each claim to a replica: the first claim counts, and those of operators who added a replica come
        last."""
        for home in self.gateways:
            for replica_id, described in self._announced_by(home).items():
                yield replica_id, home, described, True
        for name, order in self.replica_orders.items():
            if order.document and order.home in self.gateways:
                yield ReplicaId(name), order.home, self._ordered(order.document, order.home), False

    def _ordered(self, document: str, home: GatewayId) -> _Described | DocumentFault:
        """Check a replica that an operator added against the present table."""
        try:
            return _described(document, self.gateways[home].place, self.regions)[1]
        except DocumentFault as fault:
            return fault

    def _announced_by(self, home: GatewayId) -> Mapping[ReplicaId, _Described | DocumentFault]:
        said = self._tables.said.values.get(home)
        return {} if said is None else said.replicas

    @cached_property
    def gateway_entries(self) -> tuple[GatewayEntry, ...]:
        return tuple(each.entry for each in self.gateways.values())

    @cached_property
    def replica_entries(self) -> tuple[ReplicaEntry, ...]:
        return tuple(
            ReplicaEntry(
                each.replica_id, each.home, each.pinned_to, *_moves_with(each.document), _digest(each.document)
            )
            for each in self.replicas.values()
            if each.is_served and each.is_lent
        )

    def is_removed(self, gateway_id: GatewayId) -> bool:
        return self.gateway_orders.get(gateway_id, _NO_ORDER).is_removed

    # Announcements

    def announce(self, hello: Hello) -> Changes:
        """Return the changes to write for a gateway's announcement; none where nothing is new. Raises
        AnnouncementRefused."""
        gateway_id = hello.gateway_id
        if self.is_removed(gateway_id):
            raise AnnouncementRefused(f"gateway {gateway_id} was removed by an operator, who has to add it again")
        if fault := self.regions.place_fault(hello.place):
            raise PlaceRefused(f"gateway {gateway_id} says that it is in {_in_words(hello.place)}: {fault}")
        if hello.policy.place != hello.place:
            theirs = _in_words(hello.policy.place)
            raise PlaceRefused(f"gateway {gateway_id} in {_in_words(hello.place)} brings the policy of {theirs}")
        before = self.announced.get(gateway_id)
        number = (
            before.number
            if before is not None
            else 1 + max((each.number for each in self.announced.values()), default=0)
        )
        said = Announced(hello.place, hello.announcement, hello.policy, number)
        if said == before:
            return {}
        text = encode(said)
        if len(text) > DOCUMENT_BYTES_MAX:
            raise AnnouncementRefused(f"it announces {len(text)} bytes, and at most {DOCUMENT_BYTES_MAX} are kept")
        return {documents.ANNOUNCED + gateway_id: text}

    def says(self, hello: Hello) -> bool:
        """Return whether the gateway is registered with exactly this announcement."""
        said = self.announced.get(hello.gateway_id)
        if said is None or self.is_removed(hello.gateway_id):
            return False
        return said == replace(said, place=hello.place, announcement=hello.announcement, policy=hello.policy)


def _in_words(place: Place) -> str:
    return f"{place.region} ({place.jurisdiction})"


def read_replica(document: str, home: Place, regions: RegionTable) -> tuple[ReplicaId, str]:
    """Return a replica's id, and its document with region and jurisdiction, where the operators' table lets a gateway
    at `home` have it. Raises DocumentFault."""
    replica_id, described = _described(document, home, regions)
    return replica_id, described.document


def _described(document: str, home: Place, regions: RegionTable) -> tuple[ReplicaId, _Described]:
    """Read and check a replica's document. Raises DocumentFault."""
    replica_id, document = _with_place(document, home)
    try:
        told = msgspec.json.decode(document, type=_Placed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentFault(f"replica {replica_id}: {error}") from error
    place = Place(RegionName(told.region), Jurisdiction(told.jurisdiction))
    if fault := announcement_fault(regions, home, place, told.url):
        raise DocumentFault(f"replica {replica_id}: {fault}")
    return replica_id, _Described(document, regions.lends(place.region))


def _with_place(document: str, home: Place) -> tuple[ReplicaId, str]:
    if len(document.encode()) > REPLICA_DOCUMENT_BYTES_MAX:
        raise DocumentFault(f"a replica's description is larger than {REPLICA_DOCUMENT_BYTES_MAX // 1024} KiB")
    try:
        keys = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(keys.get("id", msgspec.Raw(b"null")), type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DocumentFault(f"a replica's description is no JSON object with an id: {error}") from error
    if REPLICA_ID_PATTERN.fullmatch(name) is None:
        raise DocumentFault(f"{name[:100]!r} is not a replica's id")
    keys = {key: each for key, each in keys.items() if bytes(each) != b"null"}
    if ("region" in keys) != ("jurisdiction" in keys):
        raise DocumentFault(f"replica {name}: region and jurisdiction are written together or not at all")
    if "region" in keys:
        return ReplicaId(name), document
    keys["region"] = msgspec.Raw(encode(home.region))
    keys["jurisdiction"] = msgspec.Raw(encode(home.jurisdiction))
    return ReplicaId(name), msgspec.json.encode(keys).decode()


class _Placed(msgspec.Struct):
    region: str
    jurisdiction: str
    url: str = ""


class _Decode(msgspec.Struct):
    policy: str | None = None


class _Pool(msgspec.Struct):
    name: str = ""
    kind: str = ""
    connector: str | None = None
    decode: _Decode = msgspec.field(default_factory=_Decode)


class _Member(msgspec.Struct):
    pool: _Pool | str = ""
    role: str = ""


def _moves_with(document: str) -> tuple[str, str, frozenset[str]]:
    """Return the replica's disaggregated pool, whose members have one owner, its part there, and the abilities that an
    adopter needs; all empty if none. A document whose pool a gateway would not understand is refused there, and its
    replica moves by itself here."""
    if '"disaggregated"' not in document:
        return "", "", frozenset()
    try:
        member = msgspec.json.decode(document, type=_Member)
    except (msgspec.DecodeError, RecursionError):
        return "", "", frozenset()
    pool = member.pool
    if not isinstance(pool, _Pool) or pool.kind != "disaggregated":
        return "", "", frozenset()
    needs = {CONNECTOR_ABILITY: pool.connector, DECODE_POLICY_ABILITY: pool.decode.policy}
    if not all(map(_is_name, (pool.name, member.role, *filter(None, needs.values())))):
        return "", "", frozenset()
    return pool.name, member.role, frozenset(f"{kind} {name}" for kind, name in needs.items() if name)


def _is_name(text: str) -> bool:
    """True for what may appear in logs and on the page: names come from other gateways."""
    return len(text) <= _NAME_LENGTH_MAX and text.isprintable()


def _digest(document: str) -> str:
    return blake2b(document.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _listed(
    replicas: tuple[str, ...], home: Place, regions: RegionTable
) -> dict[ReplicaId, _Described | DocumentFault]:
    listed: dict[ReplicaId, _Described | DocumentFault] = {}
    for index, each in enumerate(replicas):
        try:
            replica_id, described = _described(each, home, regions)
        except DocumentFault as fault:
            listed[ReplicaId(f"[{index}]")] = fault
            continue
        if replica_id in listed:
            listed[ReplicaId(f"[{index}]")] = DocumentFault(f"replica {replica_id} stands there twice")
        else:
            listed[replica_id] = described
    return listed


_OURS = (documents.ANNOUNCED, *documents.ORDERED)


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS)


def registry_of(contents: Mapping[str, bytes], regions: RegionTable) -> Registry:
    """Read the registry from all documents of a store, within the operators' table. Raises StoreUnusable over a
    document that cannot be read."""
    texts = {name: each for name, each in contents.items() if _is_ours(name)}
    tables = _Tables(
        _Table(documents.ANNOUNCED, partial(_read_said, regions), texts),
        _Table(documents.GATEWAY_ORDER, lambda name, text: decode(name, text, GatewayOrder), texts),
        _Table(documents.REPLICA_ORDER, lambda name, text: decode(name, text, ReplicaOrder), texts),
        _Table(documents.NARROWING, lambda name, text: decode(name, text, ResidencyPolicy), texts),
    )
    return Registry(texts, tables, regions)


def _read_said(regions: RegionTable, name: str, text: bytes) -> _Said:
    announced = decode(name, text, Announced)
    return _Said(announced, _listed(announced.announcement.replicas, announced.place, regions))
