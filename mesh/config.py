"""Settings that all of Nightside's programs have, each a section of a file: certificates, DNS and logging."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from mesh.environment import choice_in
from mesh.values import MILLISECOND_NS, Address

LOG_FORMAT_VARIABLE = "NIGHTSIDE_LOG_FORMAT"
LOG_LEVEL_VARIABLE = "NIGHTSIDE_LOG_LEVEL"


class ListenTlsConfig(Struct, frozen=True):
    """TLS of a listening address: the certificate that is shown to clients, and the authorities of client
    certificates."""

    certificate: Path
    """File of the certificate chain (PEM) that is shown to clients."""
    key: Path
    """File of the certificate's private key (PEM)."""
    client_ca: Path | None = None
    """CA bundle (PEM) that verifies client certificates; a client without one is refused. None: no client certificate
    is asked for."""


class MeshTlsConfig(Struct, frozen=True):
    """Mutual TLS between members of the mesh; required beyond loopback, unless `insecure` is set."""

    certificate: Path
    """File of the certificate chain (PEM) that is shown to other members; `nightside dev-certs` makes one for tests."""
    key: Path
    """File of the certificate's private key (PEM)."""
    roots: Path
    """CA bundle (PEM) that verifies the certificates of other members; it holds several roots during a rotation."""
    jurisdictions: bool = False
    """Require that the certificate of each gateway names the jurisdiction of its region."""


class DnsConfig(Struct, frozen=True):
    """Authoritative DNS server of this program for the zone of the mesh, and its limits."""

    listen: tuple[Address, ...] = ()
    """Addresses on which queries are answered, by UDP and TCP. Empty: the server is off."""
    answers_per_s: int = 200
    """Answers by UDP in a second to one client network (/24 or /56); further queries are dropped or truncated, so that
    clients retry by TCP."""
    connections_max: int = 256
    """TCP connections open at once; beyond it, the connection that has been silent for longest is closed."""
    time_max_ns: int = 100 * MILLISECOND_NS
    """Time of each second that answering may take; later queries wait for the next second."""


class LogFormat(StrEnum):
    AUTO = "auto"
    """Readable text on a terminal, else JSON."""
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LoggingConfig(Struct, frozen=True):
    """Format and level of the log on standard error."""

    format: LogFormat = LogFormat.AUTO
    """Format of log lines; the variable `NIGHTSIDE_LOG_FORMAT` overrides it."""
    level: LogLevel = LogLevel.INFO
    """Lowest level that is logged; the variable `NIGHTSIDE_LOG_LEVEL` overrides it."""

    def overridden(self, environ: Mapping[str, str]) -> LoggingConfig:
        """Settings with those of the environment in place of the file's, as logging depends on the machine. Raises
        ConfigError."""
        return LoggingConfig(
            choice_in(environ, LOG_FORMAT_VARIABLE, self.format), choice_in(environ, LOG_LEVEL_VARIABLE, self.level)
        )
