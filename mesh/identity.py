"""Identities in mesh certificates: a gateway in a region of a trust domain, or a controller.

It only reads names: the TLS handshake before has decided whether the certificate is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from cryptography import x509
from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from mesh.transport import AuthContext
from mesh.values import CERTIFICATE_NAME_PATTERN

TRUST_DOMAIN_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
TRUST_DOMAIN_LENGTH_MAX = 100
"""Most characters of a trust domain, which leaves room for the other parts of a DNS name of at most 253 characters."""

_CALLERS_KEPT = 256
"""Most certificates whose names are cached."""
_CERTIFICATE = "x509_pem_cert"
"""Property in which gRPC gives the caller's certificate. gRPC's own reading of its URI, `peer_spiffe_id`, ends at a
zero byte."""


class MeshIdentity(Struct, frozen=True):
    trust_domain: str
    region: RegionName
    gateway_id: GatewayId
    jurisdiction: Jurisdiction | None = None
    """Jurisdiction of the region, where the certificate names it."""

    @property
    def uri(self) -> str:
        """SPIFFE id, which identifies a caller."""
        name = f"spiffe://{self.trust_domain}/gateway/{self.region}/{self.gateway_id}"
        return name if self.jurisdiction is None else f"{name}/jurisdiction/{self.jurisdiction}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """Host names of the gateway, which identify a called server, since gRPC clients compare no URI. The last one
        says all that is known."""
        name = f"{self.gateway_id}.{self.region}.gateway.{self.trust_domain}"
        if self.jurisdiction is None:
            return (name,)
        return name, f"{self.gateway_id}.{self.region}.{self.jurisdiction.lower()}.jurisdiction.{self.trust_domain}"

    def __str__(self) -> str:
        return self.uri


class ControllerIdentity(Struct, frozen=True):
    """Identity of a controller. It is no gateway's identity, and gateways accept no requests from it."""

    trust_domain: str
    name: str

    @property
    def uri(self) -> str:
        return f"spiffe://{self.trust_domain}/controller/{self.name}"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """Host name that all controllers of a mesh share, since a gateway trusts each of them."""
        return (controller_dns_name(self.trust_domain),)

    def __str__(self) -> str:
        return self.uri


def controller_dns_name(trust_domain: str) -> str:
    return f"controller.{trust_domain}"


def parse_controller(uri: str) -> ControllerIdentity:
    """Parse the SPIFFE id of a controller. Raises ValueError for any other."""
    scheme, _, rest = uri.partition("://")
    trust_domain, *path = rest.split("/")
    is_controller = scheme == "spiffe" and len(path) == 2 and path[0] == "controller"
    if not is_controller or not is_trust_domain(trust_domain) or not CERTIFICATE_NAME_PATTERN.fullmatch(path[1]):
        raise ValueError(f"{uri!r} is not spiffe://TRUST-DOMAIN/controller/NAME")
    return ControllerIdentity(trust_domain, path[1])


def parse_identity(uri: str) -> MeshIdentity:
    """Parse the SPIFFE id of a gateway. Raises ValueError for any other."""
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
    """Identity of a calling gateway. Raises ValueError for a caller without a certificate, or with one that names no
    gateway."""
    uris = [uri for shown in auth.get(_CERTIFICATE, ()) for uri in _uris_in(shown)]
    if len(uris) != 1:
        raise ValueError("the certificate holds no SPIFFE id, or several")
    return parse_identity(uris[0])


@lru_cache(_CALLERS_KEPT)
def _uris_in(pem: bytes) -> tuple[str, ...]:
    """URIs in a certificate. Raises ValueError where its names cannot be read."""
    try:
        names = _names_in(x509.load_pem_x509_certificate(pem))
    except x509.InvalidVersion as error:
        raise ValueError(f"the certificate cannot be read: {error}") from error
    return () if names is None else tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def _names_in(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    """Alternative names of a certificate. Raises ValueError where they cannot be read, in place of the library's own
    exceptions."""
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(f"the certificate's names cannot be read: {error}") from error


def certificate_identity(certificate: x509.Certificate) -> MeshIdentity:
    """Identity of a gateway. Raises ValueError where the certificate would not identify it both as a caller and as a
    server."""
    return _identity_in(certificate, parse_identity)


def controller_identity(certificate: x509.Certificate) -> ControllerIdentity:
    """Identity of a controller. Raises ValueError where the certificate would not identify it both as a caller and as a
    server."""
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
