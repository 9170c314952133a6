"""Settings of the records published beyond Nightside's own name servers: the keys of the section `records`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from mesh.values import SECOND_NS, Address, Id


class RecordsKind(StrEnum):
    NONE = "none"
    ROUTE53 = "route53"
    RFC2136 = "rfc2136"


class HealthCheckKind(StrEnum):
    NONE = "none"
    """Route53 makes no health checks."""
    TCP = "tcp"
    HTTP = "http"
    HTTPS = "https"


class HealthCheckConfig(Struct, frozen=True):
    """Health checks that Route53 makes of each gateway by itself."""

    kind: HealthCheckKind = HealthCheckKind.NONE
    path: str = "/health"
    port: int | None = None
    """Port to check; default: naming.port."""
    is_fast: bool = False
    """Check every 10 seconds instead of every 30, at a higher price."""
    failures: int = 3
    """Consecutive failures after which a gateway is left out."""


class Route53Config(Struct, frozen=True):
    hosted_zone: str | None = None
    """Id of the hosted zone."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Nearest AWS region of each region of the mesh whose own name is not an AWS region's."""
    locations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Locations of each closed jurisdiction: countries (DE), parts of them (US-CA) and continents (continent:EU)."""
    health_checks: HealthCheckConfig = HealthCheckConfig()
    endpoint: str | None = None
    """URL of the API, where it is not AWS's own."""
    requests_per_s: int = 4
    """Requests to the API. AWS takes five a second for a whole account."""
    timeout_ns: int = 2 * SECOND_NS
    """Time limit of an answer; connecting may take half as long."""

    @property
    def longest_ns(self) -> int:
        """Longest duration of one request. No write begins with less than that left of a lease."""
        return self.timeout_ns * 3 // 2


class TsigAlgorithm(StrEnum):
    HMAC_SHA256 = "hmac-sha256"
    HMAC_SHA384 = "hmac-sha384"
    HMAC_SHA512 = "hmac-sha512"


class Rfc2136Config(Struct, frozen=True):
    server: Address | None = None
    """Address of the zone's primary server."""
    zone: str | None = None
    """Zone as that server has it, where it lies above the mesh's name instead of being it."""
    key_name: str = "nightside"
    key_algorithm: TsigAlgorithm = TsigAlgorithm.HMAC_SHA256
    key_file: Path | None = None
    """File that holds the secret in base64, and nothing else."""
    timeout_ns: int = 2 * SECOND_NS
    """Time limit of one query or update. No write begins with less than that left of a lease."""


class RecordsConfig(Struct, frozen=True):
    provider: RecordsKind = RecordsKind.NONE
    owner: Id = "nightside"
    """Owner of the names: the same for all controllers of a mesh, another for another mesh."""
    check_interval_ns: int = 300 * SECOND_NS
    """Interval at which the published records are compared with the wanted ones, and corrected."""
    route53: Route53Config = field(default_factory=Route53Config)
    rfc2136: Rfc2136Config = field(default_factory=Rfc2136Config)

    @property
    def write_longest_ns(self) -> int:
        """Longest duration of one write; 0 where nothing is written."""
        return {
            RecordsKind.NONE: 0,
            RecordsKind.ROUTE53: self.route53.longest_ns,
            RecordsKind.RFC2136: self.rfc2136.timeout_ns,
        }[self.provider]


def secret_of(text: str) -> bytes:
    """Decode a key's secret from base64. Raises ValueError, which quotes nothing of it."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("the secret of the key is not base64") from None
