"""Certificates that one gateway shows to its clients and to other gateways."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from mesh.certificates import date_fault
from mesh.clock import Clock
from mesh.tls import CertificateHolder, HttpTls, MeshTls, expires_soon

_SECOND_NS = 1_000_000_000


class Certificates:
    """TLS certificates, keys and roots of one gateway, read and checked."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        """Read the files. Raises CertificateFault. A certificate that has expired or is not yet valid raises no fault:
        see `date_faults`."""
        listen, mesh = config.listen.tls, config.peering.tls
        self.http = HttpTls(listen, clock) if listen else None
        self.mesh = MeshTls(mesh, config.gateway_id, config.place, clock) if mesh else None
        self.holders: list[CertificateHolder] = [each for each in (self.http, self.mesh) if each is not None]
        self._clock = clock

    def date_faults(self) -> list[str]:
        now_ns = self._clock.wall_ns()
        found = [(holder.files()[0], date_fault(holder.pair, now_ns)) for holder in self.holders]
        return [f"{path}: {fault}" for path, fault in found if fault is not None]

    def left_s(self, holder: CertificateHolder) -> float:
        """Seconds until the holder's certificate expires; negative where it has expired."""
        return self._left_ns(holder) / _SECOND_NS

    def describe(self) -> dict[str, object]:
        """Expiry of each certificate by role, for operators."""
        return {
            holder.role: {
                "expires_in_s": round(self.left_s(holder)),
                "expires_soon": expires_soon(holder.pair, self._left_ns(holder)),
            }
            for holder in self.holders
        }

    def _left_ns(self, holder: CertificateHolder) -> int:
        return holder.pair.ends_ns - self._clock.wall_ns()
