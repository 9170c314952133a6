"""TLS of the mesh: for clients, and mutual TLS between gateways and to controllers.

Certificates and roots are read again while connections run: new connections use the new ones, running ones go on. Files
that cannot be used are refused, and what was in force stays in force.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Never, Protocol, TypeVar

import grpc
import grpc.aio
from cryptography import x509
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId, Place
from mesh.certificates import CertificateFault, KeyPair, date_fault, read_key_pair, read_roots
from mesh.clock import Clock
from mesh.config import ListenTlsConfig, MeshTlsConfig
from mesh.identity import (
    ControllerIdentity,
    MeshIdentity,
    caller_identity,
    certificate_identity,
    controller_dns_name,
    controller_identity,
)
from mesh.reloader import ReloadRefused
from mesh.transport import AuthContext, ChannelOptions, Claim

_SECOND_NS = 1_000_000_000
_DAY_NS = 86_400 * _SECOND_NS
_WARN_BEFORE_NS = 7 * _DAY_NS
_LOOK_S = 600.0
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2, those with CBC left out; all of TLS 1.3 stay."""

_Read = TypeVar("_Read")


class HttpTls:
    """TLS for clients, with client certificates where `client_ca` is set."""

    role = "clients"

    def __init__(self, config: ListenTlsConfig, clock: Clock) -> None:
        """Read the files. Raises CertificateFault."""
        self._config = config
        self._clock = clock
        self.pair, self._newest = self._read()
        self.context = self._newest
        """Context to listen with. It gives each new connection the newest certificate and client authority."""
        self.context.sni_callback = self._hand_over

    def files(self) -> list[Path]:
        config = self._config
        return [config.certificate, config.key, *([config.client_ca] if config.client_ca else [])]

    async def reload(self) -> None:
        """Read the files again. Raises ReloadRefused, and has then changed nothing."""
        pair, context = await _read_for_reload(self._read)
        _refuse_out_of_date(pair, self._clock)
        self.pair, self._newest = pair, context

    def _read(self) -> tuple[KeyPair, ssl.SSLContext]:
        pair = read_key_pair(self._config.certificate, self._config.key)
        if self._config.client_ca is not None:
            read_roots(self._config.client_ca)
        try:
            return pair, _server_context(self._config)
        except (ssl.SSLError, OSError) as error:
            raise CertificateFault(f"{self._config.certificate} cannot be served: {error}") from error

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._newest


_Identity = TypeVar("_Identity", MeshIdentity, ControllerIdentity)


class _MemberTls(ABC, Generic[_Identity]):
    """Mutual TLS between members of the mesh. Every certificate names its holder, and a caller's claims are checked
    against its certificate."""

    role: str

    def __init__(self, config: MeshTlsConfig, clock: Clock) -> None:
        """Read the files. Raises CertificateFault, also where the certificate is not this member's."""
        self._config = config
        self._clock = clock
        self._trust_domain = ""
        self._newest: _MeshCredentials[_Identity] = self._read()
        self._trust_domain = self._newest.identity.trust_domain
        self._changed = asyncio.Event()
        self.version = 1
        """Version of the credentials; it grows whenever channels should be opened again."""

    @abstractmethod
    def _identify(self, certificate: x509.Certificate) -> _Identity:
        """Identity in a certificate. Raises ValueError where it is not this member's."""

    @property
    def pair(self) -> KeyPair:
        return self._newest.pair

    @property
    def identity(self) -> _Identity:
        return self._newest.identity

    def files(self) -> list[Path]:
        return [self._config.certificate, self._config.key, self._config.roots]

    async def reload(self) -> None:
        """Read the files again. Raises ReloadRefused, and has then changed nothing."""
        newest = await _read_for_reload(self._read)
        _refuse_out_of_date(newest.pair, self._clock)
        if newest == self._newest:
            return
        self._newest = newest
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer_than(self, version: int) -> None:
        """Wait for credentials other than those of `version`."""
        while self.version == version:
            await self._changed.wait()

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Listen with these credentials. Raises RuntimeError where the address cannot be listened on."""
        served = self._newest

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Configuration for a handshake, called by gRPC at each one in a thread of its own; None keeps the last
            one."""
            nonlocal served
            newest = self._newest
            if newest is served:
                return None
            served = newest
            return newest.server_configuration()

        credentials = grpc.dynamic_ssl_server_credentials(
            served.server_configuration(),
            fetch,  # type: ignore[arg-type] # gRPC accepts None too, which its types leave out
            require_client_authentication=True,
        )
        return server.add_secure_port(address, credentials)

    def caller_fault(self, auth: AuthContext, claim: Claim | None) -> str | None:
        """Reason why this caller may not call, or may not claim to be `claim`; None where it may. Only gateways
        call."""
        try:
            caller = caller_identity(auth)
        except ValueError as error:
            return str(error)
        if caller.trust_domain != self._trust_domain:
            return f"{caller} is of another trust domain"
        if self._config.jurisdictions and caller.jurisdiction is None:
            return f"{caller} names no jurisdiction, and every certificate has to"
        if claim is None:
            return None
        gateway_id, place = claim
        if (gateway_id, place.region) != (caller.gateway_id, caller.region):
            return f"{caller} claims to be gateway {gateway_id} in {place.region}"
        if caller.jurisdiction not in (None, place.jurisdiction):
            return f"{caller} claims to be in {place.jurisdiction}"
        return None

    def _open(self, address: str, dns_name: str, options: ChannelOptions) -> grpc.aio.Channel:
        """Open a channel that only a server with a certificate for `dns_name` can answer."""
        newest = self._newest
        credentials = grpc.ssl_channel_credentials(newest.roots_pem, newest.pair.key_pem, newest.pair.chain_pem)
        name: tuple[str, str] = ("grpc.ssl_target_name_override", dns_name)
        return grpc.aio.secure_channel(address, credentials, options=[*options, name])

    def _read(self) -> _MeshCredentials[_Identity]:
        pair = read_key_pair(self._config.certificate, self._config.key)
        try:
            identity = self._identify(pair.leaf)
        except ValueError as error:
            raise CertificateFault(f"{self._config.certificate}: {error}") from error
        if self._trust_domain not in ("", identity.trust_domain):
            raise CertificateFault(f"{self._config.certificate} leaves the trust domain {self._trust_domain}")
        return _MeshCredentials(pair, identity, read_roots(self._config.roots))


class MeshTls(_MemberTls[MeshIdentity]):
    """Mutual TLS of a gateway, towards other gateways and towards controllers."""

    role = "peers"

    def __init__(self, config: MeshTlsConfig, gateway_id: GatewayId, place: Place, clock: Clock) -> None:
        """Read the files. Raises CertificateFault, also where the certificate is another gateway's, or names another
        jurisdiction."""
        self._holder = (gateway_id, place)
        super().__init__(config, clock)

    def open_channel(
        self, address: str, gateway_id: GatewayId, place: Place, options: ChannelOptions
    ) -> grpc.aio.Channel:
        """Open a channel that only this gateway can answer."""
        jurisdiction = place.jurisdiction if self._config.jurisdictions else None
        called = MeshIdentity(self._trust_domain, place.region, gateway_id, jurisdiction)
        return self._open(address, called.dns_names[-1], options)

    def open_controller_channel(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        """Open a channel that only a controller of this trust domain can answer."""
        return self._open(address, controller_dns_name(self._trust_domain), options)

    def _identify(self, certificate: x509.Certificate) -> MeshIdentity:
        identity = certificate_identity(certificate)
        gateway_id, place = self._holder
        if (identity.gateway_id, identity.region) != (gateway_id, place.region):
            raise ValueError(f"it is of {identity}, not of {gateway_id} in {place.region}")
        if identity.jurisdiction not in (None, place.jurisdiction):
            raise ValueError(f"it is of {identity}, and {place.region} is said to be in {place.jurisdiction}")
        if self._config.jurisdictions and identity.jurisdiction is None:
            raise ValueError(f"it is of {identity}, and names no jurisdiction")
        return identity


class ControllerTls(_MemberTls[ControllerIdentity]):
    """Mutual TLS of a controller, which gateways call."""

    role = "gateways"

    def _identify(self, certificate: x509.Certificate) -> ControllerIdentity:
        return controller_identity(certificate)


class _MeshCredentials(Struct, Generic[_Identity], frozen=True):
    pair: KeyPair
    identity: _Identity
    roots_pem: bytes

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.pair.key_pem, self.pair.chain_pem)], root_certificates=self.roots_pem
        )


class CertificateHolder(Protocol):
    """Part of a program that shows a certificate."""

    @property
    def role(self) -> str: ...

    @property
    def pair(self) -> KeyPair: ...

    def files(self) -> list[Path]: ...

    async def reload(self) -> None: ...


class ExpiryWatch:
    """Warns that a certificate in use is about to expire."""

    def __init__(self, holders: Sequence[CertificateHolder], clock: Clock, log: FilteringBoundLogger) -> None:
        self._holders = holders
        self._clock = clock
        self._log = log
        self._said: dict[str, tuple[int, int]] = {}
        """Certificate that was last warned of, and the days that it had left then, by role."""

    async def run(self) -> Never:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Warn of each certificate once a day in its last week, or, where it is short-lived, in its last third."""
        for holder in self._holders:
            left_ns = holder.pair.ends_ns - self._clock.wall_ns()
            word = (holder.pair.leaf.serial_number, left_ns // _DAY_NS)
            if expires_soon(holder.pair, left_ns) and self._said.get(holder.role) != word:
                self._said[holder.role] = word
                self._say(holder, left_ns)

    def _say(self, holder: CertificateHolder, left_ns: int) -> None:
        line: dict[str, object] = {"role": holder.role, "serial": f"{holder.pair.leaf.serial_number:x}"}
        if left_ns > 0:
            self._log.warning("tls_certificate_expiring", **line, days_left=round(left_ns / _DAY_NS, 1))
        else:
            self._log.error("tls_certificate_expired", **line)


def expires_soon(pair: KeyPair, left_ns: int) -> bool:
    """Return whether the certificate is in its last week, or, where it is short-lived, in its last third."""
    return left_ns < min(_WARN_BEFORE_NS, (pair.ends_ns - pair.begins_ns) // 3)


def _server_context(config: ListenTlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(config.certificate, config.key)
    if config.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(config.client_ca)
        # A resumed session is not verified again, and would outlive the authority that verified it.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


async def _read_for_reload(read: Callable[[], _Read]) -> _Read:
    """Read off the event loop, since files may lie on a slow disk."""
    try:
        return await asyncio.to_thread(read)
    except CertificateFault as fault:
        raise ReloadRefused(str(fault)) from fault


def _refuse_out_of_date(pair: KeyPair, clock: Clock) -> None:
    """Refuse a certificate that has expired or is not yet valid, since the one in force is likely better. At the start
    such a certificate is only logged, so that what needs no certificate is still served."""
    fault = date_fault(pair, clock.wall_ns())
    if fault is not None:
        raise ReloadRefused(fault)
