"""Settings of a controller's store: one of several kinds, and the constraints between their keys."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from mesh.faults import FileFault
from mesh.postgresql_config import PostgresqlConfig, postgresql_faults
from mesh.values import MILLISECOND_NS, SECOND_NS, WebUrl


class StoreKind(StrEnum):
    SQLITE = "sqlite"
    """A file, for one controller."""
    POSTGRESQL = "postgresql"
    """A PostgreSQL database, shared by several controllers, of which one leads."""
    DYNAMODB = "dynamodb"
    """A DynamoDB table, shared by several controllers, of which one leads."""


class DynamodbConfig(Struct, frozen=True):
    """Connection to a DynamoDB table. Credentials are found as AWS's own tools find them."""

    table: str
    """Name of the table, whose partition key is the string `id`."""
    region: str | None = None
    """AWS region of the table. None: found as AWS's own tools find it."""
    endpoint: WebUrl | None = None
    """URL of the service, in place of AWS's own. None: AWS's own."""


class StoreConfig(Struct, frozen=True):
    """Store of the controller's state, with the lease by which one of several controllers leads."""

    kind: StoreKind = StoreKind.SQLITE
    """Kind of the store."""
    path: Path | None = None
    """File of the SQLite store; a lock file beside it keeps a second controller from writing. None: only with another
    `kind`."""
    postgresql: PostgresqlConfig | None = None
    """PostgreSQL store. None: only with another `kind`."""
    dynamodb: DynamodbConfig | None = None
    """DynamoDB store. None: only with another `kind`."""
    lease_ns: int = 6 * SECOND_NS
    """Duration of the leader's lease: without a renewal for this long, a standby may lead."""
    margin_ns: int = 1 * SECOND_NS
    """Time before the end of its lease at which the leader stops acting."""
    renew_interval_ns: int = 1500 * MILLISECOND_NS
    """Interval at which the leader renews its lease."""
    look_interval_ns: int = 500 * MILLISECOND_NS
    """Interval at which a standby controller checks whether the lease is free."""
    lapse_max_ns: int = 30 * SECOND_NS
    """Time for which a leader that cannot renew its lease keeps its gateways connected; then they connect to
    another."""
    call_timeout_ns: int = 1500 * MILLISECOND_NS
    """Time limit of a renewal, or of a standby's check."""
    write_timeout_ns: int = 10 * SECOND_NS
    """Time limit of writing state to the store."""


def store_faults(store: StoreConfig, *, insecure: bool) -> Iterator[FileFault]:
    """Yield faults between keys that are each valid by themselves."""
    described = {
        StoreKind.SQLITE: ("path", store.path),
        StoreKind.POSTGRESQL: ("postgresql", store.postgresql),
        StoreKind.DYNAMODB: ("dynamodb", store.dynamodb),
    }
    for kind, (key, settings) in described.items():
        if kind is store.kind and settings is None:
            yield FileFault(f"store.{key}", f"is missing, and store.kind is {kind}", beside="store")
        if kind is not store.kind and settings is not None:
            yield FileFault(f"store.{key}", f"is not used, since store.kind is {store.kind}", beside="store.kind")
    if store.lease_ns - store.margin_ns < store.renew_interval_ns + store.call_timeout_ns:
        told = "less store.margin should be store.renew_interval and store.call_timeout together at least"
        yield FileFault("store.lease", f"{told}: one renewal may fail")
    if store.postgresql is not None:
        yield from postgresql_faults(store.postgresql, "store.postgresql", insecure=insecure)
