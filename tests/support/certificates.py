"""Valid and invalid certificates for tests, in files as an operator would lay them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId, Jurisdiction, Place
from gateway.security.development_ca import DevelopmentCa, Issued, validity
from mesh.clock import Clock
from mesh.config import ListenTlsConfig, MeshTlsConfig
from mesh.identity import ControllerIdentity, MeshIdentity

TRUST_DOMAIN = "mesh.test"


def new_ca(trust_domain: str = TRUST_DOMAIN) -> DevelopmentCa:
    return DevelopmentCa.create(trust_domain, now_ns=Clock().wall_ns(), days=1)


def mesh_identity(gateway_id: str, place: Place, trust_domain: str = TRUST_DOMAIN) -> MeshIdentity:
    return MeshIdentity(trust_domain, place.region, GatewayId(gateway_id))


def mesh_leaf(
    ca: DevelopmentCa, gateway_id: str, place: Place, *, days: float = 1, jurisdiction: Jurisdiction | None = None
) -> Issued:
    """Certificate of a gateway; with negative days, an expired one."""
    begins, ends = validity(Clock().wall_ns(), days)
    identity = replace(mesh_identity(gateway_id, place, ca.trust_domain), jurisdiction=jurisdiction)
    return ca.issue_for_gateway(identity, begins=min(begins, ends - timedelta(days=1)), ends=ends)


def controller_leaf(ca: DevelopmentCa, name: str = "control-1", *, may_call: bool = False) -> Issued:
    """Certificate of a controller; with `may_call`, one that is also valid for a client."""
    begins, ends = validity(Clock().wall_ns(), 1)
    identity = ControllerIdentity(ca.trust_domain, name)
    if not may_call:
        return ca.issue_for_controller(identity, begins=begins, ends=ends)
    names = [x509.UniformResourceIdentifier(identity.uri), *map(x509.DNSName, identity.dns_names)]
    return ca._issue(name, [*names], [ExtendedKeyUsageOID.CLIENT_AUTH], begins, ends)


def clients_leaf(ca: DevelopmentCa, *, days: float = 1, for_callers: bool = False) -> Issued:
    """Certificate for the listener that clients connect to; with `for_callers`, the same for a client. It names no
    gateway."""
    begins, ends = validity(Clock().wall_ns(), days)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if for_callers else ExtendedKeyUsageOID.SERVER_AUTH
    return ca._issue("gateway", [*names], [usage], min(begins, ends - timedelta(days=1)), ends)


def roots_of(*authorities: DevelopmentCa) -> bytes:
    return b"".join(ca.pem().certificate_pem for ca in authorities)


@dataclass
class Files:
    """Certificate files of one gateway for one purpose."""

    folder: Path
    certificate: Path = field(init=False)
    key: Path = field(init=False)
    roots: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key = self.folder / "certificate.pem", self.folder / "key.pem"
        self.roots = self.folder / "roots.pem"

    def put(self, leaf: Issued | None = None, *, roots: bytes | None = None) -> None:
        """Replace each file as a whole, as certificate managers do."""
        if leaf is not None:
            _replace(self.key, leaf.key_pem)
            _replace(self.certificate, leaf.certificate_pem)
        if roots is not None:
            _replace(self.roots, roots)

    def mesh(self) -> MeshTlsConfig:
        return MeshTlsConfig(self.certificate, self.key, self.roots)

    def listen(self, *, asks_clients: bool = False) -> ListenTlsConfig:
        return ListenTlsConfig(self.certificate, self.key, self.roots if asks_clients else None)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)
