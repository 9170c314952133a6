"""A store in PostgreSQL, for controllers on several machines: one leads, the others stand by.

One row names the holder of the store. Each write is one statement that changes that row and the documents together, and
does nothing where the row has become another controller's. No controller holds a lock between two messages, so that
none ever waits for such a lock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, Self, TypeVar
from uuid import uuid4

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
from mesh.postgresql import PostgresqlConnection, PostgresqlSettings, PostgresqlUnavailable

FORMAT = 1
_CREATING = 0x4E534354
"""Advisory lock under which the tables are made: two controllers that begin at once make them one after the other."""
SCHEMA = (
    'CREATE TABLE nightside_documents (name text COLLATE "C" PRIMARY KEY, document bytea NOT NULL)',
    "CREATE TABLE nightside_store (id integer PRIMARY KEY CHECK (id = 1), format integer NOT NULL,"
    " revision bigint NOT NULL, token bigint NOT NULL, key text NOT NULL, holder text NOT NULL,"
    " lease_ns bigint NOT NULL, renewals bigint NOT NULL)",
    "INSERT INTO nightside_store VALUES (1, 1, 0, 0, '', '', 0, 0)",
)
_LOOK = "SELECT token, key, renewals, holder, lease_ns FROM nightside_store"
_TAKE = """
    UPDATE nightside_store SET token = token + 1, key = $4, holder = $5, lease_ns = $6, renewals = renewals + 1
    WHERE token = $1 AND key = $2 AND renewals = $3 RETURNING token, revision"""
_RENEW = "UPDATE nightside_store SET renewals = renewals + 1 WHERE key = $1 RETURNING revision"
_RISE = """
    UPDATE nightside_store SET token = $3, renewals = renewals + 1
    WHERE token BETWEEN $1 AND $3 AND key = $2 RETURNING token"""
_RELEASE = "UPDATE nightside_store SET key = '', holder = '', renewals = renewals + 1 WHERE key = $1"
_READ = """
    SELECT revision, name, document FROM nightside_store LEFT JOIN nightside_documents ON true"""
_WRITE = """
    WITH held AS (
        UPDATE nightside_store SET revision = revision + 1, renewals = renewals + 1
        WHERE token = $1 AND key = $2 AND revision = $3 RETURNING revision),
    gone AS (DELETE FROM nightside_documents WHERE name = ANY($4::text[]) AND EXISTS (SELECT FROM held)),
    put AS (
        INSERT INTO nightside_documents
        SELECT * FROM unnest($5::text[], $6::bytea[]) WHERE EXISTS (SELECT FROM held)
        ON CONFLICT (name) DO UPDATE SET document = excluded.document)
    SELECT revision FROM held"""
_HOW_IT_STANDS = "SELECT token, key, revision, holder FROM nightside_store"
_Result = TypeVar("_Result")


class PostgresqlStore:
    """Store over one connection. All calls come from one event loop."""

    def __init__(self, settings: PostgresqlSettings, lease_ns: int, clock: Clock) -> None:
        self._settings = settings
        self._lease_ns = lease_ns
        self._clock = clock
        self._watch = LeaseWatch()
        self._link = PostgresqlConnection(settings, (StoreTaken, StoreLost))
        self._holding: StoreHolding | None = None
        self._key = ""
        """Key under which this process holds the store, or would hold it had an answer come."""
        self._revision = 0
        """Revision of the last write that this process knows of; the next write has to follow it."""

    @classmethod
    async def open(cls, settings: PostgresqlSettings, *, lease_ns: int, clock: Clock) -> Self:
        """Open the store, and make the tables if there are none. Raises StoreError."""
        store = cls(settings, lease_ns, clock)
        try:
            await store._call(store._prepare, settings.write_timeout_ns)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def lease_ns(self) -> int:
        return self._lease_ns

    async def acquire(self, holder: str) -> StoreHolding:
        async def acquire(connection: Any) -> StoreHolding:
            asked_ns = self._clock.boot_ns()
            row = await connection.fetchrow(_LOOK)
            mark = LeaseMark(row["token"], row["key"], row["renewals"])
            if not self._may_be_had(mark, row["lease_ns"], asked_ns):
                raise StoreTaken(f"{self._settings.name}: another controller has it ({row['holder']})")
            self._key = uuid4().hex
            taken = await connection.fetchrow(
                _TAKE, mark.token, mark.key, mark.renewals, self._key, holder, self._lease_ns
            )
            if taken is None:
                raise StoreTaken(f"{self._settings.name}: another controller has just taken it")
            self._revision = taken["revision"]
            return StoreHolding(taken["token"], holder, self._key)

        self._holding = await self._call(acquire)
        return self._holding

    def _may_be_had(self, mark: LeaseMark, lease_ns: int, asked_ns: int) -> bool:
        """Return whether the store can be acquired: it has no holder, or this process holds it, or its holder has not
        renewed for the length of the lease."""
        if mark.key in ("", self._key):
            return True
        return self._watch.has_ended(mark, lease_ns, asked_ns=asked_ns, answered_ns=self._clock.boot_ns())

    async def renew(self, holding: StoreHolding) -> None:
        async def renew(connection: Any) -> None:
            revision = await connection.fetchval(_RENEW, holding.key)
            if revision is None:
                await self._lost(connection)
            self._check_revision(revision)

        await self._call(renew)

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        higher = max(holding.token, above) + 1

        async def rise(connection: Any) -> StoreHolding:
            token = await connection.fetchval(_RISE, holding.token, holding.key, higher)
            if token is None:  # an earlier call without an answer may have gone higher
                stands = await connection.fetchrow(_HOW_IT_STANDS)
                if stands["key"] != holding.key or stands["token"] < higher:
                    await self._lost(connection)
                token = stands["token"]
            return StoreHolding(token, holding.holder, holding.key)

        self._holding = await self._call(rise)
        return self._holding

    async def release(self, holding: StoreHolding) -> None:
        await self._call(lambda connection: connection.execute(_RELEASE, holding.key))
        if self._holding is not None and self._holding.key == holding.key:
            self._holding = None

    async def read(self) -> Contents:
        rows = await self._call(lambda connection: connection.fetch(_READ), self._settings.write_timeout_ns)
        documents = {row["name"]: row["document"] for row in rows if row["name"] is not None}
        return Contents(rows[0]["revision"], documents)

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        check_changes(changes)
        gone = [name for name, document in changes.items() if document is None]
        put = {name: document for name, document in changes.items() if document is not None}

        async def write(connection: Any) -> int:
            for _ in range(2):  # a write without an answer may have been done: then the next one follows it
                revision = await connection.fetchval(
                    _WRITE, holding.token, holding.key, self._revision, gone, list(put), list(put.values())
                )
                if revision is not None:
                    self._revision = revision
                    return int(revision)
                stands = await connection.fetchrow(_HOW_IT_STANDS)
                if (stands["token"], stands["key"]) != (holding.token, holding.key):
                    await self._lost(connection)
                self._check_revision(stands["revision"])
                self._revision = stands["revision"]
            raise StoreUnavailable(f"{self._settings.name}: it is written by a controller that does not lead")

        try:
            return await self._call(write, self._settings.write_timeout_ns)
        except StoreUnavailable as error:
            raise StoreUncertain(f"{error}: the write may or may not have succeeded") from error

    async def close(self) -> None:
        if self._link.is_closed:
            return
        if self._holding is not None:
            with suppress(StoreError):
                await self.release(self._holding)
        await self._link.close()

    async def _call(self, work: Callable[[Any], Awaitable[_Result]], timeout_ns: int | None = None) -> _Result:
        try:
            return await self._link.call(work, timeout_ns)
        except PostgresqlUnavailable as error:
            raise StoreUnavailable(str(error)) from error

    async def _prepare(self, connection: Any) -> None:
        await connection.execute("BEGIN")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _CREATING)
        if await connection.fetchval("SELECT to_regclass('nightside_store')") is None:
            for statement in SCHEMA:
                await connection.execute(statement)
        await connection.execute("COMMIT")
        found = await connection.fetchval("SELECT format FROM nightside_store")
        if found != FORMAT:
            raise StoreUnusable(f"{self._settings.name}: format {found}, and this controller reads {FORMAT}")

    def _check_revision(self, revision: int) -> None:
        """Raise StoreLost where the store has lost writes: gateways cannot unlearn what they were told, and the next
        holder goes on above that."""
        if revision < self._revision:
            raise StoreLost(f"{self._settings.name}: it has lost writes, as after a failover to a standby that lags")

    async def _lost(self, connection: Any) -> NoReturn:
        holder = (await connection.fetchrow(_HOW_IT_STANDS))["holder"]
        raise StoreLost(f"{self._settings.name}: it is now held by {holder or 'no controller'}")
