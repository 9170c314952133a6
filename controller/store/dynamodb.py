"""A store in one DynamoDB table, for controllers in AWS: one leads, the others stand by.

Documents lie in shards. A shard that changes is written under a new name, never over the old one. One item, the head,
names the holder of the store and the shards in force, so that each write, whatever its size, is decided by one
conditional update of the head. No part of a write that failed can be read.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NoReturn, Self
from uuid import uuid4

import msgspec
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct
from xxhash import xxh64_intdigest

from controller.store.dynamodb_table import DynamodbSettings, DynamodbTable, Item, typed
from controller.store.lease_watch import LeaseMark, LeaseWatch
from controller.store.store import (
    Contents,
    StoreError,
    StoreHolding,
    StoreLost,
    StoreTaken,
    StoreUnavailable,
    StoreUncertain,
    StoreUnusable,
    check_changes,
)
from mesh.clock import Clock

FORMAT = 1
SHARDS = 32
"""Number of shards. A changed document has its whole shard written anew; more shards would make the head larger, which
is written with each renewal."""
PART_BYTES_MAX = 380_000
"""Bytes of a shard in one item; DynamoDB allows 400 KB an item, its name included."""
_HEAD = "head"
_READS_MAX = 5
"""Tries of a read: shards that are replaced meanwhile are read again."""
_GARBAGE_MAX = 10_000


class _Shard(Struct, frozen=True):
    """Location of one shard's documents."""

    key: str
    parts: int

    @property
    def item_ids(self) -> list[str]:
        return [f"{self.key}#{number}" for number in range(self.parts)]


class _Head(Struct, frozen=True):
    mark: LeaseMark
    revision: int
    holder: str
    lease_ns: int
    shards: Mapping[str, _Shard]
    """Shards that hold documents, by number."""


class DynamodbStore:
    """Store in a DynamoDB table. All calls come from one event loop."""

    def __init__(self, settings: DynamodbSettings, lease_ns: int, clock: Clock) -> None:
        self._settings = settings
        self._table = DynamodbTable(settings)
        self._lease_ns = lease_ns
        self._clock = clock
        self._watch = LeaseWatch()
        self._turn = asyncio.Lock()
        """Lock of writes: each follows the one before."""
        self._holding: StoreHolding | None = None
        self._key = ""
        """Key under which this process holds the store, or would hold it had an answer come."""
        self._head: _Head | None = None
        """Head as this process last wrote or read it."""
        self._documents: dict[str, dict[str, bytes]] = {}
        """Documents by shard as of `_head`; no other process changes them while this one holds the store."""
        self._garbage: list[str] = []
        """Ids of items that no reader needs, to be deleted."""

    @classmethod
    async def open(cls, settings: DynamodbSettings, *, lease_ns: int, clock: Clock) -> Self:
        """Open the store, and write the head if there is none. Raises StoreError."""
        store = cls(settings, lease_ns, clock)
        try:
            async with store._table.in_words(settings.write_timeout_ns):
                await store._table.connect()
                await store._prepare()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def lease_ns(self) -> int:
        return self._lease_ns

    async def acquire(self, holder: str) -> StoreHolding:
        async with self._table.in_words(self._settings.call_timeout_ns):
            token = await self._acquire(holder)
        self._holding = StoreHolding(token, holder, self._key)
        async with self._turn, self._table.in_words(self._settings.write_timeout_ns):
            self._head, self._documents = await self._read_all()
            await self._sweep()
        return self._holding

    async def _acquire(self, holder: str) -> int:
        asked_ns = self._clock.boot_ns()
        head = await self._look()
        if not self._may_be_had(head, asked_ns):
            raise StoreTaken(f"{self._settings.name}: another controller has it ({head.holder})")
        mark, self._key = head.mark, uuid4().hex
        taken = await self._update(
            "#token = #token + :one, #key = :mine, holder = :holder, lease_ns = :lease",
            "#token = :token AND #key = :key AND renewals = :renewals",
            token=mark.token,
            key=mark.key,
            renewals=mark.renewals,
            mine=self._key,
            holder=holder,
            lease=self._lease_ns,
        )
        if taken is None:
            raise StoreTaken(f"{self._settings.name}: another controller has just taken it")
        return taken.mark.token

    def _may_be_had(self, head: _Head, asked_ns: int) -> bool:
        """Return whether the store can be acquired: it has no holder, or this process holds it, or its holder has not
        renewed for the length of the lease."""
        if head.mark.key in ("", self._key):
            return True
        return self._watch.has_ended(head.mark, head.lease_ns, asked_ns=asked_ns, answered_ns=self._clock.boot_ns())

    async def renew(self, holding: StoreHolding) -> None:
        known = 0 if self._head is None else self._head.revision  # a write may be answered during the call
        async with self._table.in_words(self._settings.call_timeout_ns):
            head = await self._update("", "#key = :key", key=holding.key)
            if head is None:
                await self._lost()
            self._check_revision(head, known)

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        async with self._table.in_words(self._settings.call_timeout_ns):
            higher = max(holding.token, above) + 1
            head = await self._update(
                "#token = :higher",
                "#token BETWEEN :token AND :higher AND #key = :key",
                higher=higher,
                token=holding.token,
                key=holding.key,
            )
            if head is None:  # an earlier call without an answer may have gone higher
                head = await self._look()
                if head.mark.key != holding.key or head.mark.token < higher:
                    await self._lost()
        self._holding = StoreHolding(head.mark.token, holding.holder, holding.key)
        return self._holding

    async def release(self, holding: StoreHolding) -> None:
        async with self._table.in_words(self._settings.call_timeout_ns):
            await self._update(
                "#key = :empty, holder = :empty",
                "#key = :key",
                key=holding.key,
                empty="",
            )
        if self._holding is not None and self._holding.key == holding.key:
            self._holding = None

    async def read(self) -> Contents:
        async with self._table.in_words(self._settings.write_timeout_ns):
            head, shards = await self._read_all()
        return Contents(head.revision, _joined(shards))

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        check_changes(changes)
        try:
            async with self._table.in_words(self._settings.write_timeout_ns), self._turn:
                return await self._write(holding, changes)
        except StoreUnavailable as error:
            raise StoreUncertain(f"{error}: the write may or may not have succeeded") from error

    async def close(self) -> None:
        if self._table.is_closed:
            return
        if self._holding is not None:
            with suppress(StoreError):
                await self.release(self._holding)
        self._table.close()

    # Writes

    async def _write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        if self._holding is None or self._holding.key != holding.key or self._head is None:
            await self._lost()
        for _ in range(2):  # a write without an answer may have been done: then this one follows it
            before, documents = self._head, self._documents
            changed = _changed(documents, changes)
            staged = {number: await self._stage(shard) for number, shard in changed.items()}
            shards = {number: each for number, each in (dict(before.shards) | staged).items() if each.parts}
            head = await self._update(
                "revision = :next, shards = :shards",
                "#token = :token AND #key = :key AND revision = :revision",
                next=before.revision + 1,
                shards=_as_items(shards),
                token=holding.token,
                key=holding.key,
                revision=before.revision,
            )
            if head is not None:
                self._head, self._documents = head, documents | changed
                await self._drop(before.shards[number] for number in staged if number in before.shards)
                return head.revision
            self._garbage += [item for each in staged.values() for item in each.item_ids]
            found = await self._look()
            if (found.mark.token, found.mark.key) != (holding.token, holding.key):
                await self._lost()
            self._check_revision(found, before.revision)
            self._head, self._documents = await self._read_all()
        raise StoreUnavailable(f"{self._settings.name}: it is written by a controller that does not lead")

    async def _stage(self, documents: Mapping[str, bytes]) -> _Shard:
        """Write a shard's documents to new items, to which no head refers yet."""
        if not documents:
            return _Shard("", 0)
        packed = zlib.compress(msgspec.msgpack.encode(documents), 1)
        parts = [packed[at : at + PART_BYTES_MAX] for at in range(0, len(packed), PART_BYTES_MAX)]
        shard = _Shard(uuid4().hex, len(parts))
        named = zip(shard.item_ids, parts, strict=True)
        await self._table.put([{"id": {"S": item_id}, "part": {"B": part}} for item_id, part in named])
        return shard

    async def _drop(self, shards: Iterable[_Shard]) -> None:
        """Delete the items of shards. What cannot be deleted is deleted later, by this process or the next holder."""
        self._garbage += [item for shard in shards for item in shard.item_ids]
        items, self._garbage = self._garbage, []
        try:
            await self._table.delete(items)
        except (ClientError, BotoCoreError, StoreUnavailable):
            self._garbage = items[-_GARBAGE_MAX:]

    async def _sweep(self) -> None:
        """Delete items that earlier holders left behind. Called only once this process holds the head: items that
        another process has staged can no longer come into force."""
        assert self._head is not None, "it was read"
        known = {item for shard in self._head.shards.values() for item in shard.item_ids}
        self._garbage = [each for each in await self._table.ids() if each != _HEAD and each not in known]
        await self._drop(())

    # Reads

    async def _read_all(self) -> tuple[_Head, dict[str, dict[str, bytes]]]:
        for _ in range(_READS_MAX):
            head = await self._look()
            shards = await self._read_shards(head)
            if shards is not None:
                return head, shards
        raise StoreUnavailable(f"{self._settings.name}: it changes faster than it can be read")

    async def _read_shards(self, head: _Head) -> dict[str, dict[str, bytes]] | None:
        """Return the documents by shard; None where a newer head has replaced this one meanwhile."""
        ids = [item_id for shard in head.shards.values() for item_id in shard.item_ids]
        parts = await self._table.read(ids)
        if len(parts) < len(ids):
            if (await self._look()).revision == head.revision:
                raise StoreUnusable(f"{self._settings.name}: damaged: {len(ids) - len(parts)} of its items are missing")
            return None
        return {number: self._unpacked(shard, parts) for number, shard in head.shards.items()}

    def _unpacked(self, shard: _Shard, parts: Mapping[str, bytes]) -> dict[str, bytes]:
        packed = b"".join(parts[item_id] for item_id in shard.item_ids)
        try:
            return msgspec.msgpack.decode(zlib.decompress(packed), type=dict[str, bytes])
        except (zlib.error, msgspec.DecodeError) as error:
            raise StoreUnusable(f"{self._settings.name}: damaged: {error}") from error

    async def _look(self) -> _Head:
        found = await self._table.get(_HEAD)
        if found is None:
            raise StoreUnusable(f"{self._settings.name}: its head is gone")
        return _head_in(found)

    async def _update(self, expression: str, condition: str, **values: object) -> _Head | None:
        """Update the head and count a renewal. Returns the new head; None where the condition does not hold."""
        found = await self._table.update(
            _HEAD, f"SET renewals = renewals + :one, {expression}".rstrip(", "), condition, one=1, **values
        )
        return None if found is None else _head_in(found)

    async def _prepare(self) -> None:
        head = {"id": _HEAD, "format": FORMAT, "revision": 0, "token": 0, "key": "", "holder": "", "lease_ns": 0}
        await self._table.put_new({name: typed(each) for name, each in (head | {"renewals": 0, "shards": {}}).items()})
        found = await self._table.get(_HEAD)
        if found is None or found.get("format") != typed(FORMAT):
            told = found and found.get("format", {}).get("N")
            raise StoreUnusable(f"{self._settings.name}: format {told}, and this controller reads {FORMAT}")

    def _check_revision(self, head: _Head, known: int) -> None:
        """Raise StoreLost where the store has lost writes: gateways cannot unlearn what they were told, and the next
        holder goes on above that."""
        if head.revision < known:
            raise StoreLost(f"{self._settings.name}: it has lost writes, as a copy that was restored has")

    async def _lost(self) -> NoReturn:
        holder = (await self._look()).holder
        raise StoreLost(f"{self._settings.name}: it is now held by {holder or 'no controller'}")


def _shard_of(name: str) -> str:
    return str(xxh64_intdigest(name.encode()) % SHARDS)


def _changed(
    before: Mapping[str, Mapping[str, bytes]], changes: Mapping[str, bytes | None]
) -> dict[str, dict[str, bytes]]:
    """Shards that differ once the changes are applied, whole."""
    changed: dict[str, dict[str, bytes]] = {}
    for name, document in changes.items():
        number = _shard_of(name)
        shard = changed.setdefault(number, dict(before.get(number, {})))
        if document is None:
            shard.pop(name, None)
        else:
            shard[name] = document
    return {number: shard for number, shard in changed.items() if shard != before.get(number, {})}


def _joined(shards: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    return {name: document for shard in shards.values() for name, document in shard.items()}


def _as_items(shards: Mapping[str, _Shard]) -> Item:
    return {number: {"S": f"{shard.key}/{shard.parts}"} for number, shard in shards.items()}


def _head_in(item: Item) -> _Head:
    shards = {}
    for number, each in item["shards"]["M"].items():
        key, _, parts = each["S"].partition("/")
        shards[number] = _Shard(key, int(parts))
    mark = LeaseMark(int(item["token"]["N"]), item["key"]["S"], int(item["renewals"]["N"]))
    return _Head(mark, int(item["revision"]["N"]), item["holder"]["S"], int(item["lease_ns"]["N"]), shards)
