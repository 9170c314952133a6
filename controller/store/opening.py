"""Opens the configured store. Packages that only one kind of store needs are imported only for that kind."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from controller.store.config import DynamodbConfig, PostgresqlConfig, StoreConfig, StoreKind
from controller.store.sqlite import SqliteStore
from controller.store.store import Store, StoreUnavailable, StoreUnusable
from mesh.clock import Clock
from mesh.faults import KeyFaults
from mesh.values import read_secret


async def open_store(config: StoreConfig, clock: Clock) -> Store:
    """Open the configured store. Raises StoreError."""
    match config.kind:
        case StoreKind.SQLITE:
            assert config.path is not None, "the file was checked"
            return await SqliteStore.open(config.path)
        case StoreKind.POSTGRESQL:
            assert config.postgresql is not None, "the file was checked"
            return await _postgresql(config, config.postgresql, clock)
        case StoreKind.DYNAMODB:
            assert config.dynamodb is not None, "the file was checked"
            return await _dynamodb(config, config.dynamodb, clock)


async def _postgresql(config: StoreConfig, where: PostgresqlConfig, clock: Clock) -> Store:
    module = _module("controller.store.postgresql", "asyncpg", "postgresql")
    settings = module.PostgresqlSettings(
        where.hosts,
        where.database,
        where.user,
        _password_in(where.password_file),
        _tls(where),
        config.call_timeout_ns,
        config.write_timeout_ns,
    )
    store: Store = await module.PostgresqlStore.open(settings, lease_ns=config.lease_ns, clock=clock)
    return store


async def _dynamodb(config: StoreConfig, where: DynamodbConfig, clock: Clock) -> Store:
    module = _module("controller.store.dynamodb", "boto3", "aws")
    settings = module.DynamodbSettings(
        where.table, where.region, where.endpoint, config.call_timeout_ns, config.write_timeout_ns
    )
    store: Store = await module.DynamodbStore.open(settings, lease_ns=config.lease_ns, clock=clock)
    return store


def _module(name: str, package: str, extra: str) -> ModuleType:
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        raise StoreUnusable(f"{error}: this store needs it; install nightside[{extra}]") from error
    return import_module(name)


def _tls(where: PostgresqlConfig) -> ssl.SSLContext | None:
    if not where.tls:
        return None
    try:
        return ssl.create_default_context(cafile=where.ca_file)
    except OSError as error:
        raise StoreUnusable(f"store.postgresql.ca_file: {where.ca_file} cannot be read: {error}") from error


def _password_in(file: Path | None) -> Callable[[], str | None]:
    def read() -> str | None:
        if file is None:
            return None
        try:
            return read_secret(file, "store.postgresql.password_file")
        except KeyFaults as faults:
            raise StoreUnavailable(str(faults)) from faults

    return read
