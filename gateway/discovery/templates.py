"""From where a replica was found to what it is: its description with an id and an address. It finds nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address

from gateway.config.targets import EngineTlsConfig, ReplicaConfig
from gateway.core.vocabulary import ReplicaId, ReplicaRole


@dataclass(frozen=True, slots=True)
class Location:
    """Where one replica listens, and a name it was found by."""

    address: IPv4Address | IPv6Address
    port: int
    name: str = field(compare=False)


def is_one_servers(location: Location) -> bool:
    """Not every address that is told is one server's."""
    address = location.address
    return not (address.is_multicast or address.is_unspecified or address.is_reserved) and location.port > 0


def replica_at(
    template: ReplicaConfig, scheme: str, location: Location, *, tells_port: bool = False, is_named: bool = False
) -> tuple[ReplicaConfig, ...]:
    """One replica, or one for each of its ranks. With `tells_port`, its port is part of its id; with `is_named`, its
    certificate is held against the name."""
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
    """A certificate names the name that was asked for, and hardly ever an address."""
    if scheme != "https":
        return None
    tls = template.tls or EngineTlsConfig()
    return replace(tls, server_name=tls.server_name or name)
