"""The store in PostgreSQL, against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from controller.store.postgresql import PostgresqlStore
from controller.store.store import (
    Contents,
    Store,
    StoreLost,
    StoreUnavailable,
    StoreUncertain,
    StoreUnusable,
)
from mesh.clock import Clock
from mesh.postgresql import PostgresqlSettings
from mesh.values import Address
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import free_port
from tests.support.clock import StillClock
from tests.support.store_conformance import LeasedConformance

pytestmark = pytest.mark.needs("pg_createcluster")


def settings_for(*servers: Postgresql) -> PostgresqlSettings:
    """Time-outs long enough for a busy machine."""
    addresses = tuple(each.address for each in servers)
    return PostgresqlSettings(addresses, DATABASE, USER, call_timeout_ns=20 * 10**9, write_timeout_ns=60 * 10**9)


@pytest.fixture
def database(running_postgresql: Postgresql) -> Postgresql:
    """Empty database."""
    running_postgresql.sql("DROP TABLE IF EXISTS nightside_store, nightside_documents")
    return running_postgresql


class TestConformance(LeasedConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database: Postgresql) -> None:
        self.settings = settings_for(database)

    async def open_with(self, clock: Clock, lease_ns: int) -> Store:
        return await PostgresqlStore.open(self.settings, lease_ns=lease_ns, clock=clock)


# Failures


@pytest.fixture
async def store(database: Postgresql) -> AsyncIterator[PostgresqlStore]:
    store = await opened(settings_for(database))
    yield store
    await store.close()


async def opened(settings: PostgresqlSettings) -> PostgresqlStore:
    return await PostgresqlStore.open(settings, lease_ns=6 * 10**9, clock=StillClock())


@contextmanager
def silent(store: PostgresqlStore, *, is_done: bool) -> Iterator[None]:
    """Break the connection before the server's answer; the server has carried out the statement or not (`is_done`)."""
    connection = store._link.connection

    class Broken:
        async def fetchval(self, *asked: Any) -> Any:
            if is_done:
                await connection.fetchval(*asked)
            raise ConnectionResetError("the connection broke")

        def terminate(self) -> None:
            connection.terminate()

    store._link.connection = Broken()
    yield


async def test_a_write_whose_answer_was_lost_is_written_once_more_and_counts_once(store: PostgresqlStore) -> None:
    holding = await store.acquire("one")
    with silent(store, is_done=True), pytest.raises(StoreUncertain, match="the write may or may not have succeeded"):
        await store.write(holding, {"a": b"1", "b": b"1"})
    assert (await store.read()).documents == {"a": b"1", "b": b"1"}, "it was done, and nobody knew"
    revision = await store.write(holding, {"a": b"2", "c": b"2"})
    assert await store.read() == Contents(revision, {"a": b"2", "b": b"1", "c": b"2"})
    with silent(store, is_done=False), pytest.raises(StoreUncertain):
        await store.write(holding, {"a": b"3"})
    assert await store.write(holding, {"b": None}) == revision + 1
    assert (await store.read()).documents == {"a": b"2", "c": b"2"}


async def test_one_that_went_back_to_an_older_copy_is_not_written_on(
    store: PostgresqlStore, database: Postgresql
) -> None:
    holding = await store.acquire("one")
    for text in (b"1", b"2"):
        await store.write(holding, {"a": text})
    database.sql("UPDATE nightside_store SET revision = 1")
    for late in (store.renew(holding), store.write(holding, {"a": b"3"})):
        with pytest.raises(StoreLost, match="lost writes"):
            await late


async def test_a_host_that_does_not_answer_is_passed_over(database: Postgresql) -> None:
    settings = settings_for(database)
    nowhere = Address("127.0.0.1", free_port())
    store = await opened(replace(settings, hosts=(nowhere, *settings.hosts)))
    await store.acquire("one")
    await store.close()
    with pytest.raises(StoreUnavailable, match=f"PostgreSQL nightside: {nowhere}: .*refused|Connect call failed"):
        await opened(replace(settings, hosts=(nowhere,)))


async def test_a_host_that_takes_no_writes_is_passed_over(database: Postgresql) -> None:
    standby = database.standby(is_waited_for=False)
    try:
        settings = settings_for(standby, database)
        store = await opened(settings)
        await store.acquire("one")
        await store.close()
        with pytest.raises(StoreUnavailable, match="None of the hosts match the target attribute"):
            await opened(replace(settings, hosts=(standby.address,)))
    finally:
        standby.end()


async def test_a_database_that_is_not_there_and_tables_of_a_later_format_are_named(
    store: PostgresqlStore, database: Postgresql
) -> None:
    with pytest.raises(StoreUnavailable, match='database "nobodys" does not exist'):
        await opened(replace(settings_for(database), database="nobodys"))
    database.sql("UPDATE nightside_store SET format = 9")
    with pytest.raises(StoreUnusable, match="format 9, and this controller reads 1"):
        await opened(settings_for(database))


async def test_each_connection_asks_for_the_password_that_holds_by_then(database: Postgresql) -> None:
    asked: list[str] = []

    def password() -> str:
        asked.append("asked")
        return "secret"

    store = await opened(replace(settings_for(database), password=password))
    holding = await store.acquire("one")
    database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'nightside%'")
    with pytest.raises(StoreUncertain):
        await store.write(holding, {"a": b"1"})
    await store.write(holding, {"a": b"1"})
    assert asked == ["asked", "asked"]
    await store.close()
