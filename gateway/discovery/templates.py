"""Builds a replica's description, with its id and URL, from a template and the location where it was found. It finds no
location.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from msgspec.structs import replace

from gateway.config.targets import EngineTlsConfig, ReplicaConfig
from gateway.core.vocabulary import ReplicaId, ReplicaRole


@dataclass(frozen=True, slots=True)
class ReplicaLocation:
    """Location where one replica listens, and a name that it was found by."""

    address: IPv4Address | IPv6Address
    port: int
    name: str = field(compare=False)


def is_one_servers(location: ReplicaLocation) -> bool:
    """Return whether the address can be that of one server: not multicast, unspecified or reserved, and with a port."""
    address = location.address
    return not (address.is_multicast or address.is_unspecified or address.is_reserved) and location.port > 0


def replica_at(
    template: ReplicaConfig, scheme: str, location: ReplicaLocation, *, tells_port: bool = False, is_named: bool = False
) -> tuple[ReplicaConfig, ...]:
    """One replica at the location, or one for each of its ranks. With `tells_port`, its port is part of its id; with
    `is_named`, its certificate is checked against the location's name."""
    host = f"[{location.address}]" if location.address.version == 6 else str(location.address)
    where = str(location.address).replace(":", "-")
    if tells_port:
        where = f"{where}-{location.port}"
    replica_id = ReplicaId(f"{template.spec.replica_id}-{where}")
    is_alone = template.spec.role is ReplicaRole.DECODE and not template.spec.group
    group = str(replica_id) if is_alone else template.spec.group
    found = replace(
        template,
        spec=replace(template.spec, replica_id=replica_id, group=group),
        url=f"{scheme}://{host}:{location.port}",
        tls=_tls(template, scheme, location.name if is_named else None),
    )
    return found.by_rank()


def _tls(template: ReplicaConfig, scheme: str, name: str | None) -> EngineTlsConfig | None:
    """TLS settings that check the certificate against `name` unless the template names a server: certificates hardly
    ever name an address."""
    if scheme != "https":
        return None
    tls = template.tls or EngineTlsConfig()
    return replace(tls, server_name=tls.server_name or name)
