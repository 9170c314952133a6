"""The store in PostgreSQL, against a real server."""

from __future__ import annotations

import pytest

from controller.store.postgresql import PostgresqlSettings, PostgresqlStore
from controller.store.store import Store
from gateway.ground.clock import Clock
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.support.store_conformance import LeasedConformance

pytestmark = [pytest.mark.needs("pg_createcluster"), pytest.mark.xdist_group("postgresql")]


def settings_for(*servers: Postgresql) -> PostgresqlSettings:
    """Long enough for a busy machine."""
    addresses = tuple(each.address for each in servers)
    return PostgresqlSettings(addresses, DATABASE, USER, call_timeout_ns=20 * 10**9, write_timeout_ns=60 * 10**9)


@pytest.fixture
def database(running_postgresql: Postgresql) -> Postgresql:
    """Empty."""
    running_postgresql.sql("DROP TABLE IF EXISTS nightside_store, nightside_documents")
    return running_postgresql


class TestConformance(LeasedConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database: Postgresql) -> None:
        self.settings = settings_for(database)

    async def open_with(self, clock: Clock, lease_ns: int) -> Store:
        return await PostgresqlStore.open(self.settings, lease_ns=lease_ns, clock=clock)
