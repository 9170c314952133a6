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
    """Certificate that clients are shown, and authorities that theirs must come from."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Authorities of client certificates; with it, a client without one is refused."""


class MeshTlsConfig(Struct, frozen=True):
    """Certificate for other members of the mesh, and the roots that theirs must come from."""

    certificate: Path
    key: Path
    roots: Path
    jurisdictions: bool = False
    """Require that the certificate of each gateway names the jurisdiction of its region."""


class DnsConfig(Struct, frozen=True):
    """DNS server of this program for the mesh's name, and its limits."""

    listen: tuple[Address, ...] = ()
    """Addresses on UDP and TCP; with none, the server is off."""
    answers_per_s: int = 200
    """Answers to one network by datagram in a second; beyond them queries are dropped, or told to come by TCP."""
    connections_max: int = 256
    """TCP connections; with one more, the connection that has sent no query for longest is closed."""
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
    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO

    def overridden(self, environ: Mapping[str, str]) -> LoggingConfig:
        """Settings with those of the environment in place of the file's, as logging depends on the machine. Raises
        ConfigError."""
        return LoggingConfig(
            choice_in(environ, LOG_FORMAT_VARIABLE, self.format), choice_in(environ, LOG_LEVEL_VARIABLE, self.level)
        )
