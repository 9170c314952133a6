"""Batches' database in PostgreSQL, which the gateways of one jurisdiction may share.

The connection has an event loop of its own, which runs during calls only: it belongs to the thread that makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from gateway.features.batches.database import Refused, Row, Statement
from mesh.postgresql import PostgresqlConnection, PostgresqlSettings

FORMAT = 1
_CREATING = 0x4E534241
"""Advisory lock under which the tables are made: two gateways that begin at once make them one after the other."""
_BEGIN = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '3s'"
"""Beginning of a transaction, which the server ends if its gateway freezes: others wait for its locks."""
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_Result = TypeVar("_Result")


class PostgresqlDatabase:
    """Database over one connection. All calls come from one thread."""

    is_shared = True

    def __init__(self, settings: PostgresqlSettings) -> None:
        self.name = settings.name
        self._settings = settings
        self._runner: asyncio.Runner | None = None
        self._link: PostgresqlConnection | None = None

    def open(self, schema: Sequence[str], added: Sequence[str] = ()) -> None:
        self._runner, self._link = asyncio.Runner(), PostgresqlConnection(self._settings, (Refused,))

        async def prepare(connection: Any) -> int | None:
            await connection.execute(_BEGIN)
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _CREATING)
            if await connection.fetchval("SELECT to_regclass('nightside_batch_format')") is None:
                for statement in (*schema, "CREATE TABLE nightside_batch_format (format integer NOT NULL)"):
                    await connection.execute(_in_postgresql(statement))
                await connection.execute("INSERT INTO nightside_batch_format VALUES ($1)", FORMAT)
            found: int | None = await connection.fetchval("SELECT format FROM nightside_batch_format")
            for statement in added if found == FORMAT else ():
                await connection.execute(_in_postgresql(statement))
            await connection.execute("COMMIT")
            return found

        try:
            found = self._call(prepare)
            if found != FORMAT:
                raise OSError(f"{self.name}: format {found}, and this gateway reads {FORMAT}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._runner is not None and self._link is not None:
            self._runner.run(self._link.close())
            self._runner.close()
        self._runner = self._link = None

    def run(self, *statements: Statement) -> list[list[Row]]:
        async def run(connection: Any) -> list[list[Row]]:
            await connection.execute(_BEGIN)
            try:
                rows = [await _rows(connection, each) for each in statements]
            except Refused:
                await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")
            return rows

        return self._call(run)

    def _call(self, work: Callable[[Any], Awaitable[_Result]]) -> _Result:
        if self._runner is None or self._link is None:
            raise OSError(f"{self.name}: is not open here")
        return self._runner.run(self._link.call(work, self._settings.write_timeout_ns))


def _in_postgresql(text: str) -> str:
    return text.replace("{now}", _NOW).replace("{blob}", "bytea")


async def _rows(connection: Any, each: Statement) -> list[Row]:
    rows: list[Row] = await connection.fetch(_in_postgresql(each.text), *each.values)
    if each.refusal is not None and not rows:
        raise each.refusal
    return rows
