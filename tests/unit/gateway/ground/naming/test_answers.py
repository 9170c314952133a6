from __future__ import annotations

from ipaddress import ip_address

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ground.naming.answers import Zone, datagram_max
from tests.support.naming import (
    NETWORKS,
    NS1,
    SETTINGS,
    US_ADDRESS,
    ZONE,
    addresses,
    query,
    tree,
)

NOBODY_KNOWS, IN_US, IN_EU = (ip_address(each) for each in ("192.0.2.99", "198.51.100.7", "203.0.113.7"))


@pytest.fixture
def zone() -> Zone:
    zone = Zone(SETTINGS, NETWORKS)
    zone.apply(tree())
    return zone


class TestWhere:
    def test_a_client_is_told_of_its_own_regions_gateways(self, zone: Zone) -> None:
        assert addresses(zone.answer(query(), IN_US)) == [US_ADDRESS]
        assert addresses(zone.answer(query(), IN_EU)) == ["192.0.2.2"]
        assert addresses(zone.answer(query(kind="AAAA"), IN_EU), "AAAA") == ["2001:db8::2"]

    def test_of_whom_nobody_knows_where_it_is_of_all_of_them(self, zone: Zone) -> None:
        assert addresses(zone.answer(query(), NOBODY_KNOWS)) == ["192.0.2.1", "192.0.2.2"]

    def test_a_resolver_that_tells_of_its_client_is_answered_for_that(self, zone: Zone) -> None:
        response = zone.answer(query(subnet="203.0.113.0/24"), IN_US)
        assert addresses(response) == ["192.0.2.2"]
        (option,) = response.options
        assert isinstance(option, dns.edns.ECSOption)
        assert (option.address, option.srclen, option.scopelen) == ("203.0.113.0", 24, 24)

    def test_one_that_asks_not_to_be_told_apart_is_answered_by_its_own_address(self, zone: Zone) -> None:
        response = zone.answer(query(subnet="0.0.0.0/0"), IN_EU)
        assert addresses(response) == ["192.0.2.2"]
        (option,) = response.options
        assert isinstance(option, dns.edns.ECSOption)
        assert option.scopelen == 0

    def test_no_answer_is_for_one_person_alone(self, zone: Zone) -> None:
        (option,) = zone.answer(query(subnet="203.0.113.7/32"), IN_US).options
        assert isinstance(option, dns.edns.ECSOption)
        assert option.scopelen == 24

    def test_ipv6_clients_by_their_own_networks(self, zone: Zone) -> None:
        assert addresses(zone.answer(query(subnet="2001:db8:e:1::/56"), IN_US)) == ["192.0.2.2"]

    def test_where_nobody_is_left_there_is_nothing_to_be_told_and_no_lie(self) -> None:
        zone = Zone(SETTINGS, NETWORKS)
        zone.apply(tree(eu=()))
        response = zone.answer(query(), IN_EU)
        assert response.rcode() == dns.rcode.NOERROR
        assert not response.answer
        assert response.authority[0].rdtype == dns.rdatatype.SOA


class TestNames:
    @pytest.mark.parametrize(
        ("name", "kind", "rcode", "answers"),
        [
            pytest.param("mesh.example.", "TXT", dns.rcode.NOERROR, 0, id="another-type"),
            pytest.param("MESH.example.", "A", dns.rcode.NOERROR, 1, id="whatever-the-case"),
            pytest.param("no.mesh.example.", "A", dns.rcode.NXDOMAIN, 0, id="no-such-name"),
            pytest.param("_tcp.mesh.example.", "A", dns.rcode.NOERROR, 0, id="nothing-but-something-below"),
            pytest.param("ns1.mesh.example.", "A", dns.rcode.NOERROR, 1, id="a-server"),
            pytest.param("ns1.mesh.example.", "TXT", dns.rcode.NOERROR, 0, id="a-server-has-no-text"),
            pytest.param("mesh.example.", "SOA", dns.rcode.NOERROR, 1, id="soa"),
            pytest.param("mesh.example.", "NS", dns.rcode.NOERROR, 1, id="ns"),
            pytest.param("mesh.example.", "ANY", dns.rcode.NOERROR, 1, id="any-is-not-everything"),
            pytest.param("example.", "A", dns.rcode.REFUSED, 0, id="above"),
            pytest.param("notmesh.example.", "A", dns.rcode.REFUSED, 0, id="another-zone"),
        ],
    )
    def test_each_is_what_it_is(self, zone: Zone, name: str, kind: str, rcode: int, answers: int) -> None:
        response = zone.answer(query(dns.name.from_text(name), kind), IN_US)
        assert (response.rcode(), len(response.answer)) == (rcode, answers)
        is_ours = rcode != dns.rcode.REFUSED
        assert bool(response.flags & dns.flags.AA) == is_ours
        if is_ours and not answers:
            assert [each.rdtype for each in response.authority] == [dns.rdatatype.SOA]
        assert not response.flags & dns.flags.RA

    def test_services_lead_to_the_name(self, zone: Zone) -> None:
        (srv,) = zone.answer(query("_https._tcp.mesh.example.", "SRV"), IN_US).answer
        assert srv[0].to_text() == "0 0 443 mesh.example."
        (https,) = zone.answer(query(kind="HTTPS"), IN_EU).answer
        assert https[0].to_text() == '1 . alpn="http/1.1" ipv4hint="192.0.2.2" ipv6hint="2001:db8::2"'

    def test_two_servers_are_named_and_the_serial_is_the_trees(self, zone: Zone) -> None:
        (servers,) = zone.answer(query(kind="NS"), IN_US).answer
        assert sorted(each.to_text() for each in servers) == ["ns1.mesh.example.", "ns2.elsewhere.example."]
        zone.apply(tree(7))
        (soa,) = zone.answer(query(kind="SOA"), IN_US).answer
        assert soa[0].serial == 7

    def test_an_older_tree_is_not_gone_back_to(self, zone: Zone) -> None:
        zone.apply(tree(9, us=("192.0.2.77",)))
        zone.apply(tree(8))
        assert addresses(zone.answer(query(), IN_US)) == ["192.0.2.77"]

    def test_before_there_is_a_tree_nothing_is_claimed(self) -> None:
        assert Zone(SETTINGS, NETWORKS).answer(query(), IN_US).rcode() == dns.rcode.REFUSED


class TestQueries:
    def test_what_is_no_query_is_not_done(self, zone: Zone) -> None:
        update = query()
        update.set_opcode(dns.opcode.NOTIFY)
        assert zone.answer(update, IN_US).rcode() == dns.rcode.NOTIMP

    def test_a_later_edns_is_told_so(self, zone: Zone) -> None:
        later = dns.message.make_query(ZONE, "A", use_edns=1)
        assert zone.answer(later, IN_US).rcode() == dns.rcode.BADVERS

    def test_no_question_or_two(self, zone: Zone) -> None:
        none, two = query(), query()
        none.question = []
        two.question = [*two.question, *query(NS1).question]
        assert {zone.answer(each, IN_US).rcode() for each in (none, two)} == {dns.rcode.FORMERR}

    def test_another_class_is_not_ours(self, zone: Zone) -> None:
        chaos = dns.message.make_query("version.bind.", "TXT", "CH")
        assert zone.answer(chaos, IN_US).rcode() == dns.rcode.REFUSED

    @pytest.mark.parametrize(("payload", "most"), [(512, 512), (0, 512), (1232, 1232), (65535, 1232)])
    def test_a_datagram_is_never_fragmented(self, payload: int, most: int) -> None:
        assert datagram_max(query(payload=payload)) == most

    def test_without_edns_it_is_as_short_as_ever(self) -> None:
        assert datagram_max(dns.message.make_query(ZONE, "A", use_edns=-1)) == 512

    @given(st.binary(max_size=64), st.sampled_from(["A", "AAAA", "ANY", "HTTPS", "SRV", "SOA", "TYPE65280"]))
    def test_whatever_name_is_asked_for_there_is_one_answer(self, label: bytes, kind: str) -> None:
        zone = Zone(SETTINGS, NETWORKS)
        zone.apply(tree())
        name = dns.name.Name([label[:63] or b"x", *ZONE.labels])
        response = zone.answer(query(name, kind), IN_US)
        assert response.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN)
        assert dns.message.from_wire(response.to_wire()).id == response.id
