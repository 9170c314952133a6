from __future__ import annotations

from ipaddress import ip_address, ip_network

import dns.name
import dns.rdatatype
import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import Jurisdiction, RegionName
from mesh.naming.client_location import network_of
from mesh.naming.tree import NameServer, RecordTree
from mesh.naming.zone import ADDRESSES_MAX, Zone, ZoneAnswer
from tests.support.naming import (
    AP,
    EU,
    EU_ADDRESSES,
    EVERYBODY,
    US,
    US_ADDRESS,
    area,
    tree,
    with_further,
    with_networks,
)

NOBODY_KNOWS, IN_US, IN_EU = (network_of(ip_address(each)) for each in ("192.0.2.99", "198.51.100.7", "203.0.113.7"))
CLOSED_EU = tree(closed=frozenset({EU}))
BOTH_CLOSED = tree(closed=frozenset({EU, US}))


def found(zone: Zone, name: str, client: object = IN_US) -> ZoneAnswer | None:
    assert isinstance(client, type(IN_US))
    return zone.find(dns.name.from_text(name), client)


def told(zone: Zone, name: str = "mesh.example.", client: object = IN_US) -> tuple[str, ...]:
    """Addresses of both kinds."""
    there = found(zone, name, client)
    assert there is not None
    kinds = (dns.rdatatype.A, dns.rdatatype.AAAA)
    return tuple(sorted(item.to_text() for each in there.sets if each.rdtype in kinds for item in each))


class TestWhoIsToldOfWhom:
    def test_a_client_of_its_own_region(self) -> None:
        assert told(Zone(tree()), client=IN_US) == (US_ADDRESS,)
        assert told(Zone(tree()), client=IN_EU) == EU_ADDRESSES

    def test_one_of_whom_nobody_knows_where_it_is_of_those_for_anywhere(self) -> None:
        assert told(Zone(tree()), client=NOBODY_KNOWS) == tuple(sorted(EVERYBODY))

    def test_where_nobody_is_left_of_nobody_and_why(self) -> None:
        there = found(Zone(tree(eu=(), closed=frozenset({EU}))), "mesh.example.", IN_EU)
        assert there is not None
        assert [each.rdtype for each in there.sets] == [dns.rdatatype.NS, dns.rdatatype.SOA]
        assert there.why == "no gateway lives that clients in EU may be sent to"

    def test_a_network_partly_in_a_closed_jurisdiction_is_led_nowhere_else(self) -> None:
        wide = ip_network("203.0.112.0/23")
        assert told(Zone(CLOSED_EU), client=wide) == EU_ADDRESSES
        assert told(Zone(tree()), client=wide) == tuple(sorted(EVERYBODY))

    def test_a_network_in_two_closed_jurisdictions_is_led_nowhere(self) -> None:
        both = with_networks(with_networks(BOTH_CLOSED, US, "10.0.0.0/24"), EU, "10.0.1.0/24")
        assert told(Zone(both), client=ip_network("10.0.0.0/23")) == ()
        there = found(Zone(both), "mesh.example.", ip_network("10.0.0.0/23"))
        assert there is not None
        assert there.why == "clients of that network are in US and in EU, which are closed"

    def test_however_many_there_are_one_client_is_told_of_so_many_and_others_of_others(self) -> None:
        many = tuple(f"192.0.2.{number}" for number in range(20)) + tuple(f"2001:db8::{n:x}" for n in range(1, 4))
        zone = Zone(replace(tree(us=many), areas=(area(US, *many),)))
        hands = {told(zone, client=network_of(ip_address(f"198.51.100.{last}"))) for last in range(256)}
        assert {address for hand in hands for address in hand} == set(many)
        assert all(len(hand) == ADDRESSES_MAX + 3 for hand in hands)
        assert told(zone, client=IN_US) == told(zone, client=IN_US)

    def test_where_there_are_many_each_client_is_told_of_all_further_gateways_and_of_fewer_others(self) -> None:
        further = ("203.0.113.9", "203.0.113.10", "2001:db8:f::9")
        many = (*(f"192.0.2.{number}" for number in range(8)), "2001:db8::1")
        crowded = replace(area(US, *many, *further), further=further)
        zone = Zone(replace(tree(), areas=(crowded,)))
        hands = {told(zone, client=network_of(ip_address(f"198.51.100.{last}"))) for last in range(256)}
        assert {address for hand in hands for address in hand} == {*many, *further}
        assert len(hands) == 2
        for hand in hands:
            assert set(further) <= set(hand)
            assert (sum(":" not in each for each in hand), len(hand)) == (ADDRESSES_MAX, ADDRESSES_MAX + 2)


def https(zone: Zone, name: str = "mesh.example.", client: object = IN_EU) -> list[str]:
    there = found(zone, name, client)
    assert there is not None
    return sorted(item.to_text() for each in there.sets if each.rdtype == dns.rdatatype.HTTPS for item in each)


class TestOrderOfGateways:
    """HTTPS records lead to the nearest gateways first, and to the further one second."""

    FURTHER = ("192.0.2.31", "2001:db8::31")
    ORDERED = (
        '1 nearest.eu-west-1.mesh.example. alpn="http/1.1" ipv4hint="192.0.2.2" ipv6hint="2001:db8::2"',
        '2 further.eu-west-1.mesh.example. alpn="http/1.1" ipv4hint="192.0.2.31" ipv6hint="2001:db8::31"',
    )

    def zone(self, **more: object) -> Zone:
        return Zone(replace(with_further(tree(), EU, *self.FURTHER), **more))

    def test_a_client_and_a_regions_name_are_told_of_both_in_order(self) -> None:
        assert https(self.zone()) == list(self.ORDERED)
        assert https(self.zone(), "eu-west-1.mesh.example.", NOBODY_KNOWS) == list(self.ORDERED)
        assert told(self.zone(), client=IN_EU) == tuple(sorted((*EU_ADDRESSES, *self.FURTHER)))

    def test_each_target_has_exactly_its_own_addresses_and_the_trees_ttl(self) -> None:
        for client in (IN_US, IN_EU, NOBODY_KNOWS):
            assert told(self.zone(), "nearest.eu-west-1.mesh.example.", client) == EU_ADDRESSES
            assert told(self.zone(), "further.eu-west-1.mesh.example.", client) == self.FURTHER
        sets = getattr(found(self.zone(), "nearest.eu-west-1.mesh.example."), "sets", ())
        assert {(each.rdtype, each.ttl) for each in sets} == {(dns.rdatatype.A, 5), (dns.rdatatype.AAAA, 5)}

    def test_without_a_further_gateway_one_record_leads_to_the_name_itself(self) -> None:
        zone = self.zone()
        assert https(zone, client=IN_US) == ['1 . alpn="http/1.1" ipv4hint="192.0.2.1"']
        assert https(zone, "us-east-1.mesh.example.") == ['1 . alpn="http/1.1" ipv4hint="192.0.2.1"']
        assert [each.split()[:2] for each in https(zone, client=NOBODY_KNOWS)] == [["1", "."]]
        for label in ("nearest", "further"):
            assert found(zone, f"{label}.us-east-1.mesh.example.") is None
            assert found(Zone(tree()), f"{label}.eu-west-1.mesh.example.") is None

    def test_regions_with_the_same_gateways_each_lead_to_their_own_targets(self) -> None:
        alike = with_further(with_further(tree(us=EU_ADDRESSES), EU, *self.FURTHER), US, *self.FURTHER)
        zone = Zone(alike)
        for client, region in ((IN_EU, EU), (IN_US, US)):
            leads_to = [each.split()[1] for each in https(zone, client=client)]
            assert leads_to == [f"nearest.{region}.mesh.example.", f"further.{region}.mesh.example."]

    def test_after_the_death_of_the_nearest_region_the_one_that_is_left_comes_first(self) -> None:
        zone = Zone(tree(eu=self.FURTHER))
        assert https(zone) == ['1 . alpn="http/1.1" ipv4hint="192.0.2.31" ipv6hint="2001:db8::31"']

    def test_without_a_gateway_there_is_no_https_record(self) -> None:
        assert https(Zone(tree(eu=()))) == []

    def test_without_tls_there_is_neither_an_order_nor_a_target(self) -> None:
        zone = self.zone(tls=False)
        assert https(zone) == []
        assert found(zone, "nearest.eu-west-1.mesh.example.") is None

    def test_another_port_is_told_with_each_target_also_under_the_name_of_the_service(self) -> None:
        for name in ("mesh.example.", "_8443._https.mesh.example."):
            records = https(self.zone(port=8443), name)
            assert [each.split()[:4] for each in records] == [
                ["1", "nearest.eu-west-1.mesh.example.", 'alpn="http/1.1"', 'port="8443"'],
                ["2", "further.eu-west-1.mesh.example.", 'alpn="http/1.1"', 'port="8443"'],
            ]
        there = https(self.zone(port=8443), "_8443._https.mesh.example.", IN_US)
        assert there == ['1 mesh.example. alpn="http/1.1" port="8443"']

    def test_a_client_in_a_closed_jurisdiction_is_told_of_no_target_elsewhere(self) -> None:
        zone = Zone(with_further(BOTH_CLOSED, EU, *self.FURTHER))
        for label, addresses in (("nearest", EU_ADDRESSES), ("further", self.FURTHER)):
            name = f"{label}.eu-west-1.mesh.example."
            assert told(zone, name, IN_EU) == addresses
            assert told(zone, name, IN_US) == ()
            assert getattr(found(zone, name, IN_US), "why", "") == "clients in US get no addresses elsewhere"

    def test_one_client_is_given_the_same_group_by_record_hint_and_target(self) -> None:
        many = tuple(f"192.0.2.{number}" for number in range(100, 120))
        zone = Zone(with_further(tree(eu=many), EU, "192.0.2.31"))
        groups = set()
        for last in range(256):
            client = network_of(ip_address(f"203.0.113.{last}"))
            at_target = told(zone, "nearest.eu-west-1.mesh.example.", client)
            assert len(at_target) == ADDRESSES_MAX - 1
            assert told(zone, client=client) == tuple(sorted((*at_target, "192.0.2.31")))
            hint = https(zone, client=client)[0].split("ipv4hint=")[1].strip('"')
            assert tuple(sorted(hint.split(","))) == at_target
            groups.add(at_target)
        assert len(groups) == 3

    @pytest.mark.parametrize("label", ["nearest", "further"])
    def test_a_region_called_like_a_target_keeps_its_name_and_no_order_is_told(self, label: str) -> None:
        ordered = self.zone().tree
        other = replace(area(AP, "192.0.2.77"), region=RegionName(f"{label}.EU-west-1"))
        zone = Zone(replace(ordered, areas=(*ordered.areas, other)))
        assert told(zone, f"{label}.eu-west-1.mesh.example.") == ("192.0.2.77",)
        assert [each.split()[:2] for each in https(zone)] == [["1", "."]]
        assert told(zone, client=IN_EU) == tuple(sorted((*EU_ADDRESSES, *self.FURTHER)))

    def test_a_server_called_like_a_target_keeps_its_name_and_no_order_is_told(self) -> None:
        zone = self.zone(name_servers=(NameServer("further.eu-west-1.mesh.example.", ("192.0.2.53",)),))
        assert told(zone, "further.eu-west-1.mesh.example.") == ("192.0.2.53",)
        assert [each.split()[:2] for each in https(zone)] == [["1", "."]]

    def test_regions_whose_names_differ_by_case_alone_have_no_targets(self) -> None:
        ordered = self.zone().tree
        other = replace(area(AP, "192.0.2.77"), region=RegionName("EU-WEST-1"))
        assert [each.split()[:2] for each in https(Zone(replace(ordered, areas=(*ordered.areas, other))))] == [
            ["1", "."]
        ]

    def test_a_region_whose_targets_would_be_too_long_has_none(self) -> None:
        long = RegionName(".".join(["x" * 60] * 3 + ["x" * 50]))
        crowded = replace(area(EU, *EU_ADDRESSES, *self.FURTHER), region=long, further=self.FURTHER)
        zone = Zone(replace(tree(), areas=(crowded,)))
        assert told(zone, f"{long}.mesh.example.") == tuple(sorted((*EU_ADDRESSES, *self.FURTHER)))
        assert [each.split()[:2] for each in https(zone)] == [["1", "."]]


class TestNamesOfRegions:
    def test_each_region_has_one_for_whoever_asks_from_wherever(self) -> None:
        for client in (IN_US, IN_EU, NOBODY_KNOWS):
            assert told(Zone(tree()), "eu-west-1.mesh.example.", client) == EU_ADDRESSES

    def test_a_client_in_a_closed_jurisdiction_is_told_of_nobody_elsewhere(self) -> None:
        zone = Zone(CLOSED_EU)
        assert told(zone, "us-east-1.mesh.example.", IN_EU) == ()
        assert told(zone, "us-east-1.mesh.example.", ip_network("203.0.112.0/23")) == ()
        assert told(zone, "eu-west-1.mesh.example.", IN_EU) == EU_ADDRESSES
        assert told(zone, "us-east-1.mesh.example.", IN_US) == (US_ADDRESS,)

    def test_one_whose_name_makes_no_name_is_told_of_under_the_one_name(self) -> None:
        odd = RegionName("x" * 64)
        zone = Zone(replace(tree(), areas=(replace(area(US, US_ADDRESS), region=odd),)))
        assert told(zone, client=IN_US) == (US_ADDRESS,)

    def test_a_region_called_like_a_server_leaves_the_server_its_name(self) -> None:
        zone = Zone(replace(tree(), areas=(replace(area(US, US_ADDRESS), region=RegionName("NS1")),)))
        assert told(zone, "ns1.mesh.example.") == ("192.0.2.53", "2001:db8::53")


class TestServices:
    def test_they_lead_to_the_one_name(self) -> None:
        there = found(Zone(tree()), "_https._tcp.mesh.example.")
        assert there is not None
        assert [each.to_text() for each in there.sets] == ["_https._tcp.mesh.example. 5 IN SRV 0 0 443 mesh.example."]

    def test_another_port_is_told_wherever_one_may_look_for_it(self) -> None:
        zone = Zone(replace(tree(), port=8443))
        texts = {
            each.to_text()
            for name in ("_https._tcp.mesh.example.", "_8443._https.mesh.example.", "us-east-1.mesh.example.")
            for each in getattr(found(zone, name), "sets", ())
        }
        assert texts == {
            "_https._tcp.mesh.example. 5 IN SRV 0 0 8443 mesh.example.",
            '_8443._https.mesh.example. 5 IN HTTPS 1 mesh.example. alpn="http/1.1" port="8443"',
            "us-east-1.mesh.example. 5 IN A 192.0.2.1",
            'us-east-1.mesh.example. 5 IN HTTPS 1 . alpn="http/1.1" port="8443" ipv4hint="192.0.2.1"',
        }

    def test_without_tls_nothing_says_that_there_is_any(self) -> None:
        zone = Zone(replace(tree(), port=8080, tls=False))
        there = found(zone, "_http._tcp.mesh.example.")
        assert there is not None
        assert [each.to_text() for each in there.sets] == ["_http._tcp.mesh.example. 5 IN SRV 0 0 8080 mesh.example."]
        told_of = getattr(found(zone, "us-east-1.mesh.example."), "sets", ())
        assert [each.to_text() for each in told_of] == ["us-east-1.mesh.example. 5 IN A 192.0.2.1"]
        assert found(zone, "_https._tcp.mesh.example.") is None
        assert found(zone, "_8080._https.mesh.example.") is None

    def test_where_nobody_is_told_of_there_is_no_service(self) -> None:
        there = found(Zone(tree(eu=())), "_https._tcp.mesh.example.", IN_EU)
        assert there is not None
        assert not there.sets


class TestWhatIsNoTree:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            pytest.param({"zone": "mesh"}, "not a whole name with a dot", id="not-whole"),
            pytest.param({"zone": "."}, "not a whole name", id="the-root"),
            pytest.param({"zone": f"{'x' * 64}.example."}, "the zone is .* which is no name", id="a-long-label"),
            pytest.param({"name_servers": (NameServer("ns1"),)}, "a name server is 'ns1'", id="server"),
            pytest.param({"name_servers": (NameServer("n.example."),) * 14}, "at most 13", id="servers"),
            pytest.param({"anywhere": ("10.0.0.300",)}, "10.0.0.300", id="anywhere"),
            pytest.param({"areas": (area(AP, "nowhere"),)}, "nowhere", id="an-address"),
        ],
    )
    def test_it_is_refused_in_words(self, wrong: dict[str, object], words: str) -> None:
        whole = tree()
        fields = {name: getattr(whole, name) for name in whole.__slots__}  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=words):
            Zone(RecordTree(**(fields | wrong)))


def test_a_jurisdiction_is_all_of_its_regions() -> None:
    other = replace(area(US, "192.0.2.9"), region=RegionName("eu-north-1"), jurisdiction=Jurisdiction("EU"))
    areas = (*CLOSED_EU.areas, replace(other, is_closed=True, networks=("203.0.112.0/24",)))
    zone = Zone(replace(CLOSED_EU, areas=areas))
    assert told(zone, client=ip_network("203.0.112.0/23")) == ("192.0.2.2", "192.0.2.9", "2001:db8::2")
