"""One connection to a PostgreSQL database, for the stores of controllers and gateways: found among several hosts, and
made anew after any error. It knows no table and decides nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
from msgspec import Struct

from mesh.postgresql_config import PostgresqlConfig, password_in
from mesh.values import Address

_SECOND_NS = 1_000_000_000
_Result = TypeVar("_Result")
_TROUBLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Exceptions that asyncpg raises; the last one where a host takes no writes."""


class PostgresqlUnavailable(OSError):
    """The database cannot be asked at this moment: says in words which one, and why."""


class PostgresqlSettings(Struct, frozen=True):
    """Address of the database, and the credentials."""

    hosts: tuple[Address, ...]
    """Addresses of one database: the host that accepts writes is used."""
    database: str = "nightside"
    user: str = "nightside"
    password: Callable[[], str | None] = lambda: None
    """Called for each connection: the password may have been exchanged since the last."""
    tls: ssl.SSLContext | None = None
    call_timeout_ns: int = 1_500_000_000
    """Time limit of one query, a connection for it included if there is none."""
    write_timeout_ns: int = 10 * _SECOND_NS
    program: str = "nightside controller"
    """Name under which the database knows the program."""

    @property
    def name(self) -> str:
        """Name for log lines and error messages."""
        return f"PostgreSQL {self.database} at {', '.join(map(str, self.hosts))}"


class PostgresqlConnection:
    """Connection that runs one piece of work at a time. All calls come from one event loop."""

    def __init__(self, settings: PostgresqlSettings, answers: tuple[type[Exception], ...] = ()) -> None:
        """`answers` are exceptions of work that leave the connection as good as before."""
        self._settings = settings
        self._answers = answers
        self.connection: Any = None
        """Connection of asyncpg; None while there is none."""
        self._turn = asyncio.Lock()
        self._host = 0
        """Index of the host that last accepted writes."""
        self.is_closed = False

    async def call(self, work: Callable[[Any], Awaitable[_Result]], timeout_ns: int | None = None) -> _Result:
        """Run `work` on the connection, one at a time. Work that is given up halfway may still be carried out: the
        connection is not used again then. It must wait for nothing once it is cancelled, so it begins and commits
        transactions itself: asyncpg's own would wait for a rollback. Raises PostgresqlUnavailable."""
        if self.is_closed:
            raise PostgresqlUnavailable(f"{self._settings.name}: it is closed")
        limit_s = (timeout_ns or self._settings.call_timeout_ns) / _SECOND_NS
        is_well = False
        try:
            async with asyncio.timeout(limit_s), self._turn:
                try:
                    connection = self.connection or await self._connect()
                    result = await work(connection)
                    is_well = True
                except self._answers:
                    is_well = True
                    raise
                finally:
                    if not is_well:
                        self._hang_up()
        except TimeoutError as error:
            raise PostgresqlUnavailable(f"{self._settings.name}: no answer within {limit_s:g} s") from error
        except PostgresqlUnavailable:
            raise
        except _TROUBLE as error:
            raise PostgresqlUnavailable(f"{self._settings.name}: {_in_words(error)}") from error
        return result

    async def close(self) -> None:
        """Close the connection, once the work at hand is done."""
        self.is_closed = True
        async with self._turn:
            self._hang_up()

    async def _connect(self) -> Any:
        """Connect to the host that accepts writes, beginning with the one that last did."""
        hosts, settings = self._settings.hosts, self._settings
        share_s = settings.call_timeout_ns / len(hosts) / _SECOND_NS
        faults: list[str] = []
        for turn in range(len(hosts)):
            number = (self._host + turn) % len(hosts)
            try:
                self.connection = await asyncpg.connect(
                    host=hosts[number].host,
                    port=hosts[number].port,
                    database=settings.database,
                    user=settings.user,
                    password=await asyncio.to_thread(settings.password),
                    ssl=settings.tls or False,
                    timeout=share_s,
                    statement_cache_size=0,  # connection poolers keep no prepared statements
                    target_session_attrs="read-write",
                    server_settings={"application_name": settings.program},
                )
            except (TimeoutError, *_TROUBLE) as error:
                faults.append(f"{hosts[number]}: {_in_words(error)}")
                continue
            self._host = number
            return self.connection
        raise PostgresqlUnavailable(f"PostgreSQL {settings.database}: {'; '.join(faults)}")

    def _hang_up(self) -> None:
        """Close the connection at once, whatever is under way."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()


def settings_of(
    where: PostgresqlConfig, key: str, *, call_timeout_ns: int, write_timeout_ns: int, program: str
) -> PostgresqlSettings:
    """Settings as a file gives them under a key. Raises OSError where its CA bundle cannot be read."""
    tls = None
    if where.tls:
        try:
            tls = ssl.create_default_context(cafile=where.ca_file)
        except OSError as error:
            raise OSError(f"{key}.ca_file: {where.ca_file} cannot be read: {error}") from error
    password = password_in(where.password_file, f"{key}.password_file")
    return PostgresqlSettings(
        where.hosts, where.database, where.user, password, tls, call_timeout_ns, write_timeout_ns, program
    )


def _in_words(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
