from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.client_location import NETWORKS_MAX, Networks, network_of
from mesh.naming.tree import Area

A, B, C = RegionName("a"), RegionName("b"), RegionName("c")
X, Y = Jurisdiction("X"), Jurisdiction("Y")


def area(region: RegionName, *networks: str, closed: Jurisdiction | None = None) -> Area:
    return Area(region, closed or Jurisdiction("OPEN"), (), (), networks=networks, is_closed=closed is not None)


NETWORKS = Networks([area(A, "10.0.0.0/8", "2001:db8::/32"), area(B, "10.1.0.0/16", "10.2.3.0/24")])


@pytest.mark.parametrize(
    ("client", "region"),
    [
        ("10.9.9.9", A),
        ("10.1.0.0", B),
        ("10.1.255.255", B),
        ("10.2.0.0", A),
        ("10.2.3.4", B),
        ("10.2.4.4", A),
        ("10.255.255.255", A),
        ("11.0.0.0", None),
        ("9.255.255.255", None),
        ("2001:db8::1", A),
        ("2001:db9::1", None),
        ("192.0.2.1", None),
        ("0.0.0.0", None),
        ("255.255.255.255", None),
    ],
)
def test_of_several_networks_the_narrowest_counts(client: str, region: RegionName | None) -> None:
    assert NETWORKS.locate(network_of(ip_address(client))).region == region


def test_a_whole_network_of_clients_is_where_all_of_it_is() -> None:
    assert NETWORKS.locate(ip_network("10.1.2.0/24")).region == B
    assert NETWORKS.locate(ip_network("10.0.0.0/15")).region is None
    assert NETWORKS.locate(ip_network("10.0.0.0/7")).region is None


@pytest.mark.parametrize(
    ("client", "scope"),
    [
        pytest.param("10.1.2.0/24", 16, id="as-wide-as-the-network"),
        pytest.param("10.9.9.9/32", 13, id="as-wide-as-nothing-lies-elsewhere"),
        pytest.param("10.2.2.0/24", 24, id="a-neighbour-lies-elsewhere"),
        pytest.param("192.0.2.0/24", 1, id="nobody-knows-half-the-world"),
        pytest.param("10.0.0.0/8", 16, id="too-wide-to-say"),
    ],
)
def test_the_scope_is_as_wide_as_the_answer_holds(client: str, scope: int) -> None:
    assert NETWORKS.locate(ip_network(client)).scope_bits == scope


def test_without_networks_one_answer_is_for_the_whole_world() -> None:
    assert Networks([]).locate(ip_network("10.0.0.0/24")).scope_bits == 0
    whole = Networks([area(A, "0.0.0.0/0", closed=X)])
    assert whole.locate(ip_network("10.0.0.0/24")).scope_bits == 0
    assert whole.locate(ip_network("255.255.255.255/32")).region == A


class TestClosed:
    NETWORKS = Networks(
        [
            area(A, "10.0.0.0/24", "10.0.2.0/24", closed=X),
            area(B, "10.0.1.0/24"),
            area(C, "10.0.3.0/24", closed=Y),
        ]
    )

    @pytest.mark.parametrize(
        ("client", "closed"),
        [
            ("10.0.0.9/32", (X,)),
            ("10.0.1.9/32", ()),
            ("10.0.0.0/23", (X,)),
            ("10.0.2.0/23", (X, Y)),
            ("10.0.0.0/8", (X, Y)),
            ("10.0.3.0/25", (Y,)),
            ("10.0.4.0/22", ()),
            ("11.0.0.0/8", ()),
        ],
    )
    def test_of_a_network_every_closed_jurisdiction_is_told_that_any_of_it_is_in(
        self, client: str, closed: tuple[Jurisdiction, ...]
    ) -> None:
        assert self.NETWORKS.locate(ip_network(client)).closed == closed


small_networks = st.builds(
    lambda first, bits: ip_network((first >> bits << bits, 32 - bits)), st.integers(0, 63), st.integers(0, 6)
)


@given(
    st.dictionaries(small_networks, st.sampled_from([A, B, C]), max_size=8),
    small_networks,
)
def test_every_answer_is_what_looking_at_each_network_would_say(claimed: dict, client: object) -> None:  # type: ignore[type-arg]
    networks = Networks(
        [
            area(each, *(str(net) for net, region in claimed.items() if region == each), closed=closed)
            for each, closed in ((A, X), (B, Y), (C, None))
        ]
    )

    def region_of(address: int) -> RegionName | None:
        around = [each for each in claimed if ip_address(address) in each]
        return claimed[max(around, key=lambda each: each.prefixlen)] if around else None

    assert isinstance(client, type(ip_network("10.0.0.0/8")))
    inside = [region_of(int(each)) for each in client]
    found = networks.locate(client)
    assert found.region == (inside[0] if len(set(inside)) == 1 else None)
    closed = {jurisdiction for region, jurisdiction in ((A, X), (B, Y)) if region in inside}
    assert set(found.closed) == closed
    assert len(found.closed) == len(closed)
    first = int(client.network_address)
    wide = ip_network((first >> (32 - found.scope_bits) << (32 - found.scope_bits), found.scope_bits))
    near = [region_of(int(wide.network_address) + step) for step in range(min(wide.num_addresses, 128))]
    assert set(near) == {inside[0]}


def test_an_ipv4_client_over_ipv6_is_an_ipv4_client() -> None:
    assert network_of(ip_address("::ffff:10.1.0.1")) == ip_network("10.1.0.1/32")


def test_a_network_lies_in_one_region() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8 is said to be in a and in b"):
        Networks([area(A, "10.0.0.0/8"), area(B, "10.0.0.0/8")])
    with pytest.raises(ValueError, match="host bits"):
        Networks([area(A, "10.0.0.1/8")])


def test_so_many_networks_and_no_more() -> None:
    with pytest.raises(ValueError, match=str(NETWORKS_MAX)):
        Networks([area(A, *["10.0.0.0/8"] * (NETWORKS_MAX + 1))])
