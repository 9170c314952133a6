"""Settings of the records published beyond Nightside's own name servers: the keys of the section `records`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, field

from mesh.values import SECOND_NS, Address, Id, WebUrl


class RecordsKind(StrEnum):
    NONE = "none"
    """No records are published; the program's own DNS server may answer."""
    ROUTE53 = "route53"
    """Records are written to Amazon Route53."""
    RFC2136 = "rfc2136"
    """Records are written by dynamic updates (RFC 2136), which BIND, Knot DNS and others accept."""


class HealthCheckKind(StrEnum):
    NONE = "none"
    """Route53 makes no health checks."""
    TCP = "tcp"
    HTTP = "http"
    HTTPS = "https"


class HealthCheckConfig(Struct, frozen=True):
    """Health checks that Route53 makes of each gateway by itself."""

    kind: HealthCheckKind = HealthCheckKind.NONE
    """Kind of the health checks."""
    path: str = "/health"
    """Path that HTTP and HTTPS checks request."""
    port: int | None = None
    """Port that is checked. None: `naming.port`."""
    is_fast: bool = False
    """Check every 10 seconds instead of every 30, at a higher price."""
    failures: int = 3
    """Consecutive failures after which Route53 leaves a gateway out of its answers."""


class Route53Config(Struct, frozen=True):
    """Publication of records by Amazon Route53."""

    hosted_zone: str | None = None
    """Id of the hosted zone. None: only with another provider."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """Nearest AWS region of each region whose own name is not that of an AWS region."""
    locations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Locations of each closed jurisdiction: countries (`DE`), states (`US-CA`) and continents (`continent:EU`)."""
    health_checks: HealthCheckConfig = HealthCheckConfig()
    """Health checks that Route53 makes of each gateway."""
    endpoint: WebUrl | None = None
    """URL of the API, in place of AWS's own. None: AWS's own."""
    requests_per_s: int = 4
    """Most API requests per second; AWS permits five for a whole account."""
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
    """Publication of records by dynamic updates (RFC 2136) with TSIG signatures."""

    server: Address | None = None
    """Address of the zone's primary server. None: only with another provider."""
    zone: str | None = None
    """Zone on the primary server that contains the mesh's name. None: the mesh's name is the zone."""
    key_name: str = "nightside"
    """Name of the TSIG key."""
    key_algorithm: TsigAlgorithm = TsigAlgorithm.HMAC_SHA256
    """Algorithm of the TSIG key."""
    key_file: Path | None = None
    """File of the TSIG key's secret, in base64. None: only with another provider."""
    timeout_ns: int = 2 * SECOND_NS
    """Time limit of one query or update; no write begins with less than this left of a lease."""


class RecordsConfig(Struct, frozen=True):
    """Publication of the mesh's DNS records by a record provider."""

    provider: RecordsKind = RecordsKind.NONE
    """Record provider."""
    owner: Id = "nightside"
    """Owner that marks the published records: the same for all controllers of a mesh, and different for each mesh."""
    check_interval_ns: int = 300 * SECOND_NS
    """Interval at which published records are compared with the wanted ones, and corrected."""
    route53: Route53Config = field(default_factory=Route53Config)
    """Publication of records by Amazon Route53."""
    rfc2136: Rfc2136Config = field(default_factory=Rfc2136Config)
    """Publication of records by dynamic updates (RFC 2136)."""

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
