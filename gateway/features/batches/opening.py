"""Makes the configured store of batches and their files. Packages that only one kind needs are imported only for it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from gateway.config.sections import GatewayConfig
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.database import Database
from gateway.features.batches.files import BatchFiles, FolderFiles
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.store import BatchStore
from mesh.clock import Clock
from mesh.faults import ConfigError

_CALL_NS = 3_000_000_000
"""Time limit of a connection to the database."""
_WRITE_NS = 5_000_000_000
"""Time limit of one transaction."""


def book_for(config: GatewayConfig, clock: Clock) -> BatchBook:
    """Book of the configured store, which is not open yet."""
    batches = config.batches
    store = BatchStore(_database(batches, clock), config.gateway_id, config.place.jurisdiction)
    return BatchBook(store, _files(batches), batches.lease_ns, clock)


def check_batches(config: BatchesConfig) -> None:
    """Check that what the config names can be used here. Raises ConfigError."""
    for key, package, extra in (("postgresql", "asyncpg", "postgresql"), ("s3", "boto3", "aws")):
        if getattr(config, key) is not None and find_spec(package) is None:
            raise ConfigError(f"batches.{key}: there is no {package} here; install nightside[{extra}]")
    if config.postgresql is not None:
        try:
            _database(config, Clock())
        except OSError as error:
            raise ConfigError(str(error)) from error


def _database(config: BatchesConfig, clock: Clock) -> Database:
    if config.postgresql is None:
        assert config.folder is not None, "the file was checked"
        return SqliteDatabase(config.folder / "batches.sqlite", lambda: clock.wall_ns() // 1_000_000)
    settings = import_module("mesh.postgresql").settings_of(
        config.postgresql,
        "batches.postgresql",
        call_timeout_ns=_CALL_NS,
        write_timeout_ns=_WRITE_NS,
        program="nightside gateway",
    )
    database: Database = import_module("gateway.features.batches.postgresql").PostgresqlDatabase(settings)
    return database


def _files(config: BatchesConfig) -> BatchFiles:
    if config.s3 is None:
        assert config.folder is not None, "the file was checked"
        return FolderFiles(config.folder)
    files: BatchFiles = import_module("gateway.features.batches.s3").S3Files(config.s3)
    return files
