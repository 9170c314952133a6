"""Settings that every program of ours has, each a section of its file: the certificates it shows, and how it logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gateway.ground.environment import choice_in
from gateway.ground.values import MILLISECOND_NS, Address

LOG_FORMAT_VARIABLE = "NIGHTSIDE_LOG_FORMAT"
LOG_LEVEL_VARIABLE = "NIGHTSIDE_LOG_LEVEL"


@dataclass(frozen=True, slots=True)
class ListenTlsConfig:
    """What clients are shown, and what they are asked for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Authorities of clients' certificates; with it, a client without one is turned away."""


@dataclass(frozen=True, slots=True)
class MeshTlsConfig:
    """What this gateway shows other members of the mesh, and whom it believes."""

    certificate: Path
    key: Path
    roots: Path
    jurisdictions: bool = False
    """Every gateway's certificate has to name the jurisdiction that its region lies in."""


@dataclass(frozen=True, slots=True)
class DnsConfig:
    """Where this program answers for the mesh's one name, and what those who ask may cost it."""

    listen: tuple[Address, ...] = ()
    """On UDP and TCP. None: it answers nobody."""
    answers_per_s: int = 200
    """To one network by datagram; what is above it is dropped, or told to come by TCP."""
    connections_max: int = 256
    """Over TCP; one more, and whoever has asked nothing for longest is let go."""
    time_max_ns: int = 100 * MILLISECOND_NS
    """Of each second, what answering may take; whoever asks then waits for the next."""


class LogFormat(StrEnum):
    AUTO = "auto"
    """Readable on a terminal, JSON everywhere else."""
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO

    def overridden(self, environ: Mapping[str, str]) -> LoggingConfig:
        """The environment may say how to log: that belongs to the machine and not to the file. Raises ConfigError."""
        return LoggingConfig(
            choice_in(environ, LOG_FORMAT_VARIABLE, self.format), choice_in(environ, LOG_LEVEL_VARIABLE, self.level)
        )
