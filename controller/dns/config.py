"""Where the records are published beyond our own name servers: the keys of the section `records`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gateway.ground.values import SECOND_NS, Address, Id


class RecordsKind(StrEnum):
    NONE = "none"
    ROUTE53 = "route53"
    RFC2136 = "rfc2136"


class HealthCheckKind(StrEnum):
    NONE = "none"
    """Route53 asks nobody."""
    TCP = "tcp"
    HTTP = "http"
    HTTPS = "https"


@dataclass(frozen=True, slots=True)
class HealthCheckConfig:
    """What Route53 asks each gateway by itself."""

    kind: HealthCheckKind = HealthCheckKind.NONE
    path: str = "/health"
    port: int | None = None
    """Without one, naming.port."""
    is_fast: bool = False
    """Every 10 seconds and not every 30. It costs more."""
    failures: int = 3
    """In a row, until a gateway is left out."""


@dataclass(frozen=True, slots=True)
class Route53Config:
    hosted_zone: str | None = None
    """Its id."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """The AWS region that is nearest to one of ours, where it has another name."""
    locations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where a closed jurisdiction is: countries (DE), parts of them (US-CA) and continents (continent:EU)."""
    health_checks: HealthCheckConfig = HealthCheckConfig()
    endpoint: str | None = None
    """Of the API, where it is not AWS's own."""
    requests_per_s: int = 4
    """To the API. AWS takes five a second for all of an account."""
    timeout_ns: int = 2 * SECOND_NS
    """Of an answer; to be connected may take half as long."""

    @property
    def longest_ns(self) -> int:
        """Of one request. Nothing is written with less than that left of a lease."""
        return self.timeout_ns * 3 // 2


class TsigAlgorithm(StrEnum):
    HMAC_SHA256 = "hmac-sha256"
    HMAC_SHA384 = "hmac-sha384"
    HMAC_SHA512 = "hmac-sha512"


@dataclass(frozen=True, slots=True)
class Rfc2136Config:
    server: Address | None = None
    """Of the zone's primary."""
    zone: str | None = None
    """As that server has it, where it is not the one name itself but above it."""
    key_name: str = "nightside"
    key_algorithm: TsigAlgorithm = TsigAlgorithm.HMAC_SHA256
    key_file: Path | None = None
    """The secret, in base64, alone in its file."""
    timeout_ns: int = 2 * SECOND_NS
    """Of one question or update. Nothing is written with less than that left of a lease."""


@dataclass(frozen=True, slots=True)
class RecordsConfig:
    provider: RecordsKind = RecordsKind.NONE
    owner: Id = "nightside"
    """Whose the names are: the same for all controllers of a mesh, another for another mesh."""
    check_interval_ns: int = 300 * SECOND_NS
    """What is said there is compared with what should be so often, and put right."""
    route53: Route53Config = field(default_factory=Route53Config)
    rfc2136: Rfc2136Config = field(default_factory=Rfc2136Config)

    @property
    def write_longest_ns(self) -> int:
        """0 where nothing is written."""
        return {
            RecordsKind.NONE: 0,
            RecordsKind.ROUTE53: self.route53.longest_ns,
            RecordsKind.RFC2136: self.rfc2136.timeout_ns,
        }[self.provider]


def secret_of(text: str) -> bytes:
    """A key's, from base64. Raises ValueError, which quotes nothing of it."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("the secret of the key is not base64") from None
