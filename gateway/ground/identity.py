"""Who a mesh certificate says its holder is: one gateway in one region of one trust domain, or one of its controllers.

Names only: whether the certificate is to be believed was settled by the TLS handshake before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from cryptography import x509

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from gateway.ground.transport import AuthContext
from gateway.ground.values import CERTIFICATE_NAME_PATTERN

TRUST_DOMAIN_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
TRUST_DOMAIN_LENGTH_MAX = 100
"""Leaves room for the other names in a DNS name of at most 253 characters."""

_CALLERS_KEPT = 256
"""Certificates that are not read anew with each call."""
_CERTIFICATE = "x509_pem_cert"
"""Set by gRPC: what the caller showed. Its own reading of the URI in it, `peer_spiffe_id`, ends at a zero byte."""


@dataclass(frozen=True, slots=True)
class MeshIdentity:
    trust_domain: str
    region: RegionName
    gateway_id: GatewayId
    jurisdiction: Jurisdiction | None = None
    """The one that the region lies in, where the authority says so."""

    @property
    def uri(self) -> str:
        """The SPIFFE id, which says who calls."""
        name = f"spiffe://{self.trust_domain}/gateway/{self.region}/{self.gateway_id}"
        return name if self.jurisdiction is None else f"{name}/jurisdiction/{self.jurisdiction}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The same as host names, which say who was called: gRPC clients compare no URI. The last one says all that is
        known."""
        name = f"{self.gateway_id}.{self.region}.gateway.{self.trust_domain}"
        if self.jurisdiction is None:
            return (name,)
        return name, f"{self.gateway_id}.{self.region}.{self.jurisdiction.lower()}.jurisdiction.{self.trust_domain}"

    def __str__(self) -> str:
        return self.uri


@dataclass(frozen=True, slots=True)
class ControllerIdentity:
    """Of the one who says who serves what; no gateway's, and no gateway takes requests from it."""

    trust_domain: str
    name: str

    @property
    def uri(self) -> str:
        return f"spiffe://{self.trust_domain}/controller/{self.name}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The same for all controllers of a mesh: a gateway believes each of them."""
        return (controller_dns_name(self.trust_domain),)

    def __str__(self) -> str:
        return self.uri


def controller_dns_name(trust_domain: str) -> str:
    return f"controller.{trust_domain}"


def parse_controller(uri: str) -> ControllerIdentity:
    """Raises ValueError for what is no controller's SPIFFE id."""
    scheme, _, rest = uri.partition("://")
    trust_domain, *path = rest.split("/")
    is_controller = scheme == "spiffe" and len(path) == 2 and path[0] == "controller"
    if not is_controller or not is_trust_domain(trust_domain) or not CERTIFICATE_NAME_PATTERN.fullmatch(path[1]):
        raise ValueError(f"{uri!r} is not spiffe://TRUST-DOMAIN/controller/NAME")
    return ControllerIdentity(trust_domain, path[1])


def parse_identity(uri: str) -> MeshIdentity:
    """Raises ValueError for what is no gateway's SPIFFE id."""
    scheme, _, rest = uri.partition("://")
    trust_domain, *path = rest.split("/")
    jurisdiction = Jurisdiction(path.pop()) if len(path) == 5 and path.pop(3) == "jurisdiction" else None
    names = [*path, *([] if jurisdiction is None else [jurisdiction.lower()])]
    is_gateway = scheme == "spiffe" and len(path) == 3 and path[0] == "gateway"
    if not is_gateway or not is_trust_domain(trust_domain) or not all(map(CERTIFICATE_NAME_PATTERN.fullmatch, names)):
        raise ValueError(
            f"{uri!r} is not spiffe://TRUST-DOMAIN/gateway/REGION/GATEWAY, with /jurisdiction/JURISDICTION or without"
        )
    return MeshIdentity(trust_domain, RegionName(path[1]), GatewayId(path[2]), jurisdiction)


def is_trust_domain(text: str) -> bool:
    return len(text) <= TRUST_DOMAIN_LENGTH_MAX and TRUST_DOMAIN_PATTERN.fullmatch(text) is not None


def caller_identity(auth: AuthContext) -> MeshIdentity:
    """Raises ValueError for a caller without a certificate, or with one that names no gateway."""
    uris = [uri for shown in auth.get(_CERTIFICATE, ()) for uri in _uris_in(shown)]
    if len(uris) != 1:
        raise ValueError("the certificate holds no SPIFFE id, or several")
    return parse_identity(uris[0])


@lru_cache(_CALLERS_KEPT)
def _uris_in(pem: bytes) -> tuple[str, ...]:
    """Raises ValueError where the names of a certificate cannot be read."""
    try:
        names = _names_in(x509.load_pem_x509_certificate(pem))
    except x509.InvalidVersion as error:
        raise ValueError(f"the certificate cannot be read: {error}") from error
    return () if names is None else tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def _names_in(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    """Raises ValueError where they cannot be read: what the library raises then is none."""
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"the certificate's names cannot be read: {error}") from error


def certificate_identity(certificate: x509.Certificate) -> MeshIdentity:
    """Raises ValueError where the certificate would not identify a gateway to callers and called alike."""
    return _identity_in(certificate, parse_identity)


def controller_identity(certificate: x509.Certificate) -> ControllerIdentity:
    """Raises ValueError where the certificate would not identify a controller to callers and called alike."""
    return _identity_in(certificate, parse_controller)


_Identity = TypeVar("_Identity", MeshIdentity, ControllerIdentity)


def _identity_in(certificate: x509.Certificate, parse: Callable[[str], _Identity]) -> _Identity:
    names = _names_in(certificate)
    if names is None:
        raise ValueError("the certificate holds no alternative names")
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise ValueError(f"the certificate holds {len(uris)} URIs where one is needed")
    identity = parse(uris[0])
    held = names.get_values_for_type(x509.DNSName)
    for name in identity.dns_names:
        if name not in held:
            raise ValueError(f"the certificate lacks the DNS name {name}")
    return identity
