"""Settings of a controller's store: one of several kinds, and the constraints between their keys."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from mesh.faults import Fault, KeyFaults
from mesh.values import MILLISECOND_NS, SECOND_NS, Address, read_secret


class StoreKind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    DYNAMODB = "dynamodb"


class PostgresqlConfig(Struct, frozen=True):
    hosts: tuple[Address, ...]
    """Addresses of one database; the host that accepts writes is used."""
    database: str = "nightside"
    user: str = "nightside"
    password_file: Path | None = None
    """File that is read for each connection: the password may be exchanged, and may be a token that expires."""
    tls: bool = True
    """The server's certificate has to name the host."""
    ca_file: Path | None = None
    """CA bundle (PEM) that verifies the server; default: the machine's trusted roots."""


class DynamodbConfig(Struct, frozen=True):
    """Settings of a DynamoDB store. Credentials are looked for where AWS's own tools look for them."""

    table: str
    """Table with one key, `id`, a string."""
    region: str | None = None
    """AWS region; default: found as AWS's own tools find it."""
    endpoint: str | None = None
    """URL of the service in place of AWS's own."""


class StoreConfig(Struct, frozen=True):
    kind: StoreKind = StoreKind.SQLITE
    path: Path | None = None
    """Path of one SQLite file. A lock file beside it keeps a second controller from writing."""
    postgresql: PostgresqlConfig | None = None
    dynamodb: DynamodbConfig | None = None
    lease_ns: int = 6 * SECOND_NS
    """Time without renewal after which a controller loses a shared store to a standby controller."""
    margin_ns: int = 1 * SECOND_NS
    """Time before the end of its lease at which a controller stops acting as leader."""
    renew_interval_ns: int = 1500 * MILLISECOND_NS
    look_interval_ns: int = 500 * MILLISECOND_NS
    """Interval at which a standby controller checks whether it may lead."""
    lapse_max_ns: int = 30 * SECOND_NS
    """Time for which a controller that cannot renew its lease still keeps its gateways; then they look for another."""
    call_timeout_ns: int = 1500 * MILLISECOND_NS
    """Time limit of a renewal, or of a standby's check."""
    write_timeout_ns: int = 10 * SECOND_NS


def store_faults(store: StoreConfig, *, insecure: bool) -> Iterator[Fault]:
    """Yield faults between keys that are each valid by themselves."""
    described = {
        StoreKind.SQLITE: ("path", store.path),
        StoreKind.POSTGRESQL: ("postgresql", store.postgresql),
        StoreKind.DYNAMODB: ("dynamodb", store.dynamodb),
    }
    for kind, (key, settings) in described.items():
        if kind is store.kind and settings is None:
            yield Fault(f"store.{key}", f"is missing, and store.kind is {kind}", beside="store")
        if kind is not store.kind and settings is not None:
            yield Fault(f"store.{key}", f"is not used, since store.kind is {store.kind}", beside="store.kind")
    if store.lease_ns - store.margin_ns < store.renew_interval_ns + store.call_timeout_ns:
        told = "less store.margin should be store.renew_interval and store.call_timeout together at least"
        yield Fault("store.lease", f"{told}: one renewal may fail")
    if store.postgresql is not None:
        yield from _faults_of_postgresql(store.postgresql, insecure=insecure)


def _faults_of_postgresql(settings: PostgresqlConfig, *, insecure: bool) -> Iterator[Fault]:
    if not settings.hosts:
        yield Fault("store.postgresql.hosts", "names no host")
    beyond = [each for each in settings.hosts if not each.is_loopback]
    if beyond and not settings.tls and not insecure:
        told = "is beyond this machine, without TLS; to allow that, write `insecure: true`"
        yield Fault("store.postgresql.tls", f"{beyond[0]} {told}")
    if settings.password_file is not None:
        try:
            read_secret(settings.password_file, "store.postgresql.password_file")
        except KeyFaults as faults:
            yield from faults.faults
