from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gateway.config.sections import ControlConfig, GatewayConfig
from gateway.control.announcing import announcement_of
from mesh.config import ListenTlsConfig
from mesh.control.vocabulary import Announcement
from mesh.values import Address
from tests.support.core import US
from tests.support.gateways import region_config

HTTP, PEERS = Address("0.0.0.0", 8080), Address("192.0.2.1", 7070)
CONTROL = ControlConfig(client_addresses=("2001:db8::1", "192.0.2.1"), latitude=1.5, longitude=-2.5)


def config(**control: object) -> GatewayConfig:
    whole = region_config("us-1", US, [], policy_file=Path("policy.yaml"))
    return replace(whole, control=replace(CONTROL, **control), replica_documents=("{}",))


def test_what_is_not_written_follows_from_where_it_listens() -> None:
    told = announcement_of(config(), HTTP, PEERS)
    assert told == Announcement(
        CONTROL.client_addresses, "192.0.2.1:7070", "http://[2001:db8::1]:8080/health", 1.5, -2.5, ("{}",)
    )


def test_what_is_written_counts() -> None:
    told = announcement_of(config(health_url="https://gw/health", peer_address=Address("gw", 7)), HTTP, PEERS)
    assert (told.health_url, told.peer_address) == ("https://gw/health", "gw:7")


def test_nobody_is_told_of_an_address_that_cannot_be_dialled() -> None:
    told = announcement_of(config(client_addresses=()), HTTP, Address("0.0.0.0", 7070))
    assert (told.peer_address, told.health_url) == ("", "")


def test_clients_that_need_tls_are_asked_for_health_by_it() -> None:
    asked = config()
    tls = ListenTlsConfig(Path("a"), Path("b"))
    asked = replace(asked, listen=replace(asked.listen, tls=tls))
    assert announcement_of(asked, HTTP, PEERS).health_url.startswith("https://")
