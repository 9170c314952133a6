"""Announcement of a gateway to its controllers, from its region file. It holds no secret."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from mesh.control.vocabulary import Announcement
from mesh.values import Address

_ANYWHERE = frozenset({"0.0.0.0", "::"})


def announcement_of(
    config: GatewayConfig, http: Address, peers: Address, abilities: tuple[str, ...] = ()
) -> Announcement:
    """Make the announcement. `http` and `peers` are the addresses that the gateway listens on, `abilities` the
    requirements of pools that it meets."""
    control = config.control
    return Announcement(
        client_addresses=control.client_addresses,
        peer_address=_dialled(control.peer_address or peers),
        health_url=control.health_url or _health_url(config, http),
        latitude=control.latitude,
        longitude=control.longitude,
        replicas=config.replica_documents,
        abilities=abilities,
    )


def _dialled(address: Address) -> str:
    """Address to announce to peers; empty for one that can be listened on but not dialled."""
    return "" if address.host in _ANYWHERE or address.port == 0 else str(address)


def _health_url(config: GatewayConfig, http: Address) -> str:
    if not config.control.client_addresses:
        return ""
    scheme = "http" if config.listen.tls is None else "https"
    return f"{scheme}://{Address(config.control.client_addresses[0], http.port)}/health"
