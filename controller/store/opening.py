"""Opens the configured store. Packages that only one kind of store needs are imported only for that kind."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from controller.store.config import DynamodbConfig, StoreConfig, StoreKind
from controller.store.sqlite import SqliteStore
from controller.store.store import Store, StoreUnusable
from mesh.clock import Clock
from mesh.postgresql_config import PostgresqlConfig


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
    try:
        settings = import_module("mesh.postgresql").settings_of(
            where,
            "store.postgresql",
            call_timeout_ns=config.call_timeout_ns,
            write_timeout_ns=config.write_timeout_ns,
            program="nightside controller",
        )
    except OSError as error:
        raise StoreUnusable(str(error)) from error
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
