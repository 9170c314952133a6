"""Where a controller's store is, as its file says: one of several kinds, and what has to hold between their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gateway.ground.faults import Fault, KeyFaults
from gateway.ground.values import MILLISECOND_NS, SECOND_NS, Address, read_secret


class StoreKind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    DYNAMODB = "dynamodb"


@dataclass(frozen=True, slots=True)
class PostgresqlConfig:
    hosts: tuple[Address, ...]
    """Of one database; whichever takes writes is used."""
    database: str = "nightside"
    user: str = "nightside"
    password_file: Path | None = None
    """Read anew for each connection: what it holds may be exchanged, and may be a token that expires."""
    tls: bool = True
    """The server's certificate has to name the host."""
    ca_file: Path | None = None
    """Who vouches for it; without it, those whom this machine trusts."""


@dataclass(frozen=True, slots=True)
class DynamodbConfig:
    """Credentials are looked for where AWS's own tools look for them."""

    table: str
    """With one key, `id`, a string."""
    region: str | None = None
    """Without it, where AWS's own tools look for it."""
    endpoint: str | None = None
    """A URL in place of AWS's own."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    kind: StoreKind = StoreKind.SQLITE
    path: Path | None = None
    """One SQLite file. Beside it lies a lock, so that no second controller writes there."""
    postgresql: PostgresqlConfig | None = None
    dynamodb: DynamodbConfig | None = None
    lease_ns: int = 6 * SECOND_NS
    """A controller that does not renew its lease for so long has lost a shared store to whoever waits for it."""
    margin_ns: int = 1 * SECOND_NS
    """So long before its lease ends a controller takes itself for the leader no more."""
    renew_interval_ns: int = 1500 * MILLISECOND_NS
    look_interval_ns: int = 500 * MILLISECOND_NS
    """One that stands by looks so often whether it may lead."""
    lapse_max_ns: int = 30 * SECOND_NS
    """One that cannot renew its lease keeps gateways for so long more; then they look for another."""
    call_timeout_ns: int = 1500 * MILLISECOND_NS
    """A renewal, or a look, that is not answered by then has failed."""
    write_timeout_ns: int = 10 * SECOND_NS


def store_faults(store: StoreConfig, *, insecure: bool) -> Iterator[Fault]:
    """Among keys each of which is well written."""
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
        yield Fault("store.postgresql.hosts", "names nobody")
    beyond = [each for each in settings.hosts if not each.is_loopback]
    if beyond and not settings.tls and not insecure:
        told = "is beyond this machine, without TLS; to allow that, write `insecure: true`"
        yield Fault("store.postgresql.tls", f"{beyond[0]} {told}")
    if settings.password_file is not None:
        try:
            read_secret(settings.password_file, "store.postgresql.password_file")
        except KeyFaults as faults:
            yield from faults.faults
