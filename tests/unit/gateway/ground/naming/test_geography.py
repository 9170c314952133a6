from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import RegionName
from gateway.ground.naming.geography import Networks, network_of

A, B = RegionName("a"), RegionName("b")
NETWORKS = Networks({A: ["10.0.0.0/8", "2001:db8::/32"], B: ["10.1.0.0/16", "10.2.3.0/24"]})


@pytest.mark.parametrize(
    ("client", "region"),
    [("10.9.9.9", A), ("10.1.9.9", B), ("10.2.3.4", B), ("10.2.4.4", A), ("2001:db8::1", A), ("192.0.2.1", None)],
)
def test_of_several_networks_the_narrowest_counts(client: str, region: RegionName | None) -> None:
    assert NETWORKS.whereabouts(network_of(ip_address(client))).region == region


def test_a_whole_network_of_clients_is_where_all_of_it_is() -> None:
    assert NETWORKS.whereabouts(ip_network("10.1.2.0/24")).region == B
    assert NETWORKS.whereabouts(ip_network("10.0.0.0/7")).region is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_what_holds_for_a_network_holds_for_all_of_it(client: int, other: int) -> None:
    found = NETWORKS.whereabouts(network_of(ip_address(client)))
    shift = 32 - found.network.prefixlen
    inside = ip_address((client >> shift << shift) | (other & ((1 << shift) - 1)))
    assert inside in found.network
    assert NETWORKS.whereabouts(network_of(inside)).region == found.region


def test_an_ipv4_client_over_ipv6_is_an_ipv4_client() -> None:
    assert network_of(ip_address("::ffff:10.1.0.1")) == ip_network("10.1.0.1/32")


def test_a_network_lies_in_one_region() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8 is said to be in a and in b"):
        Networks({A: ["10.0.0.0/8"], B: ["10.0.0.0/8"]})
    with pytest.raises(ValueError, match="host bits"):
        Networks({A: ["10.0.0.1/8"]})
