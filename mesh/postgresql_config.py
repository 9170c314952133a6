"""Settings of a connection to PostgreSQL, as the files of controllers and gateways have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from mesh.faults import FileFault, KeyFaults
from mesh.values import Address, read_secret


class PostgresqlConfig(Struct, frozen=True):
    """Connection to a PostgreSQL database."""

    hosts: tuple[Address, ...]
    """Addresses of the servers of one database; the one that accepts writes is used."""
    database: str = "nightside"
    """Name of the database."""
    user: str = "nightside"
    """Name of the database user."""
    password_file: Path | None = None
    """File of the password or token; it is read again for each connection. None: no password."""
    tls: bool = True
    """Use TLS, with a certificate that names the host. False: plain TCP, on loopback only unless `insecure` is set."""
    ca_file: Path | None = None
    """CA bundle (PEM) that verifies the server. None: the machine's trusted roots."""


def postgresql_faults(settings: PostgresqlConfig, key: str, *, insecure: bool) -> Iterator[FileFault]:
    """Yield faults of the settings under a key."""
    if not settings.hosts:
        yield FileFault(f"{key}.hosts", "names no host")
    beyond = [each for each in settings.hosts if not each.is_loopback]
    if beyond and not settings.tls and not insecure:
        told = "is beyond this machine, without TLS; to allow that, write `insecure: true`"
        yield FileFault(f"{key}.tls", f"{beyond[0]} {told}")
    if settings.password_file is not None:
        try:
            read_secret(settings.password_file, f"{key}.password_file")
        except KeyFaults as faults:
            yield from faults.faults


def password_in(file: Path | None, key: str) -> Callable[[], str | None]:
    """Reader of the password that the key's file holds at each call. It raises OSError."""

    def read() -> str | None:
        if file is None:
            return None
        try:
            return read_secret(file, key)
        except KeyFaults as faults:
            raise OSError(str(faults)) from faults

    return read
