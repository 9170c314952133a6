from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from random import Random

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.naming.answers import DnsAnswers, datagram_max
from mesh.naming.tree import RecordTree
from tests.support.naming import (
    EU,
    EVERYBODY,
    NS1,
    US,
    US_ADDRESS,
    ZONE,
    addresses,
    query,
    tree,
    with_further,
    with_networks,
)

NOBODY_KNOWS, IN_US, IN_EU = (ip_address(each) for each in ("192.0.2.99", "198.51.100.7", "203.0.113.7"))


def answers_from(given: RecordTree) -> DnsAnswers:
    answers = DnsAnswers()
    answers.apply(given)
    return answers


@pytest.fixture
def answers() -> DnsAnswers:
    return answers_from(tree())


def ecs_of(response: dns.message.Message) -> dns.edns.ECSOption:
    (option,) = response.options
    assert isinstance(option, dns.edns.ECSOption)
    return option


class TestWhere:
    def test_a_client_is_told_of_its_own_regions_gateways(self, answers: DnsAnswers) -> None:
        assert addresses(answers.answer(query(), IN_US)) == [US_ADDRESS]
        assert addresses(answers.answer(query(), IN_EU)) == ["192.0.2.2"]
        assert addresses(answers.answer(query(kind="AAAA"), IN_EU), "AAAA") == ["2001:db8::2"]

    def test_a_resolver_that_tells_of_its_client_is_answered_for_that(self, answers: DnsAnswers) -> None:
        response = answers.answer(query(subnet="203.0.113.0/24"), IN_US)
        assert addresses(response) == ["192.0.2.2"]
        option = ecs_of(response)
        assert (option.address, option.srclen, option.scopelen) == ("203.0.113.0", 24, 24)

    def test_one_that_asks_not_to_be_told_apart_is_answered_by_its_own_address(self, answers: DnsAnswers) -> None:
        for subnet in ("0.0.0.0/0", "::/0"):
            response = answers.answer(query(subnet=subnet), IN_EU)
            assert addresses(response) == ["192.0.2.2"]
            assert ecs_of(response).scopelen == 0

    def test_an_answer_for_one_is_told_to_be_good_for_its_whole_network(self, answers: DnsAnswers) -> None:
        assert ecs_of(answers.answer(query(subnet="203.0.113.7/32"), IN_US)).scopelen == 24

    def test_too_little_told_is_answered_for_all_of_it_and_more_is_asked_for(self) -> None:
        answers = answers_from(with_networks(tree(closed=frozenset({EU})), EU, "203.0.113.0/24"))
        response = answers.answer(query(subnet="203.0.112.0/23"), IN_US)
        assert addresses(response) == ["192.0.2.2"]
        assert ecs_of(response).scopelen == 24

    def test_what_is_the_same_for_everybody_has_no_scope(self, answers: DnsAnswers) -> None:
        for name, kind in ((ZONE, "SOA"), (ZONE, "NS"), (ZONE, "TXT"), (NS1, "A"), ("no.mesh.example.", "A")):
            assert ecs_of(answers.answer(query(name, kind, subnet="203.0.113.0/24"), IN_US)).scopelen == 0

    def test_ipv6_clients_by_their_own_networks(self, answers: DnsAnswers) -> None:
        response = answers.answer(query(subnet="2001:db8:e:1::/64"), IN_US)
        assert addresses(response) == ["192.0.2.2"]
        assert ecs_of(response).scopelen == 48

    def test_a_question_with_a_scope_or_with_two_clients_is_malformed(self, answers: DnsAnswers) -> None:
        scoped, twice = query(subnet="203.0.113.0/24"), query()
        scoped.use_edns(0, options=[dns.edns.ECSOption("203.0.113.0", 24, 24)])
        twice.use_edns(0, options=[dns.edns.ECSOption("203.0.113.0", 24), dns.edns.ECSOption("198.51.100.0", 24)])
        assert {answers.answer(each, IN_US).rcode() for each in (scoped, twice)} == {dns.rcode.FORMERR}

    def test_where_nobody_is_left_there_is_nothing_to_be_told_and_it_says_why(self) -> None:
        response = answers_from(tree(eu=())).answer(query(), IN_EU)
        assert response.rcode() == dns.rcode.NOERROR
        assert not response.answer
        assert response.authority[0].rdtype == dns.rdatatype.SOA
        (option,) = response.options
        assert isinstance(option, dns.edns.EDEOption)
        assert option.text == "no gateway lives that clients in EU may be sent to"


def in_order(answers: DnsAnswers) -> list[str]:
    return [item.to_text() for each in answers.answer(query(), IN_US).answer for item in each]


class TestOrder:
    NEAREST = ("198.51.100.31", "198.51.100.32", "198.51.100.33")
    FURTHER = ("198.51.100.1", "198.51.100.99")

    def test_each_of_the_nearest_comes_first_as_often_and_further_ones_last(self) -> None:
        answers = DnsAnswers(Random(1))
        answers.apply(with_further(tree(us=self.NEAREST), US, *self.FURTHER))
        told = []
        for _ in range(300):
            told.append(in_order(answers))
            answers.answer(query(kind="AAAA"), IN_US)
        assert {tuple(each[3:]) for each in told} == {self.FURTHER}
        firsts = Counter(each[0] for each in told)
        assert set(firsts) == set(self.NEAREST)
        assert all(80 < count < 120 for count in firsts.values())

    def test_where_all_are_further_ones_their_order_stays(self) -> None:
        answers = answers_from(with_further(tree(us=()), US, *self.FURTHER))
        assert [in_order(answers) for _ in range(2)] == [[*self.FURTHER]] * 2


class TestNames:
    @pytest.mark.parametrize(
        ("name", "kind", "rcode", "answers_count"),
        [
            pytest.param("mesh.example.", "TXT", dns.rcode.NOERROR, 0, id="another-type"),
            pytest.param("MESH.example.", "A", dns.rcode.NOERROR, 1, id="whatever-the-case"),
            pytest.param("no.mesh.example.", "A", dns.rcode.NXDOMAIN, 0, id="no-such-name"),
            pytest.param("_tcp.mesh.example.", "A", dns.rcode.NOERROR, 0, id="nothing-but-something-below"),
            pytest.param("ns1.mesh.example.", "A", dns.rcode.NOERROR, 1, id="a-server"),
            pytest.param("ns1.mesh.example.", "TXT", dns.rcode.NOERROR, 0, id="a-server-has-no-text"),
            pytest.param("a.ns1.mesh.example.", "A", dns.rcode.NXDOMAIN, 0, id="nothing-below-a-server"),
            pytest.param("US-EAST-1.mesh.example.", "A", dns.rcode.NOERROR, 1, id="a-region"),
            pytest.param("ap-northeast-1.mesh.example.", "A", dns.rcode.NOERROR, 0, id="a-region-without-any"),
            pytest.param("mesh.example.", "SOA", dns.rcode.NOERROR, 1, id="soa"),
            pytest.param("mesh.example.", "NS", dns.rcode.NOERROR, 1, id="ns"),
            pytest.param("mesh.example.", "ANY", dns.rcode.NOERROR, 1, id="any-is-not-everything"),
            pytest.param("mesh.example.", "AXFR", dns.rcode.REFUSED, 0, id="the-whole-zone"),
            pytest.param("example.", "A", dns.rcode.REFUSED, 0, id="above"),
            pytest.param("notmesh.example.", "A", dns.rcode.REFUSED, 0, id="another-zone"),
            pytest.param("ns2.elsewhere.example.", "A", dns.rcode.REFUSED, 0, id="a-server-elsewhere"),
        ],
    )
    def test_each_is_what_it_is(
        self, answers: DnsAnswers, name: str, kind: str, rcode: int, answers_count: int
    ) -> None:
        response = answers.answer(query(dns.name.from_text(name), kind), IN_US)
        assert (response.rcode(), len(response.answer)) == (rcode, answers_count)
        is_ours = rcode != dns.rcode.REFUSED
        assert bool(response.flags & dns.flags.AA) == is_ours
        if is_ours and not answers_count:
            assert [each.rdtype for each in response.authority] == [dns.rdatatype.SOA]
            assert response.authority[0].ttl == response.authority[0][0].minimum == 5
        assert not response.flags & dns.flags.RA

    def test_services_lead_to_the_name(self, answers: DnsAnswers) -> None:
        (srv,) = answers.answer(query("_https._tcp.mesh.example.", "SRV"), IN_US).answer
        assert srv[0].to_text() == "0 0 443 mesh.example."
        (https,) = answers.answer(query(kind="HTTPS"), IN_EU).answer
        assert https[0].to_text() == '1 . alpn="http/1.1" ipv4hint="192.0.2.2" ipv6hint="2001:db8::2"'

    def test_the_servers_are_named_with_the_addresses_of_those_inside(self, answers: DnsAnswers) -> None:
        response = answers.answer(query(kind="NS"), IN_US)
        (servers,) = response.answer
        assert sorted(each.to_text() for each in servers) == [NS1, "ns2.elsewhere.example."]
        glue = [each.to_text() for each in response.additional]
        assert glue == [f"{NS1} 300 IN A 192.0.2.53", f"{NS1} 300 IN AAAA 2001:db8::53"]

    def test_the_serial_is_the_trees(self, answers: DnsAnswers) -> None:
        answers.apply(tree(7))
        (soa,) = answers.answer(query(kind="SOA"), IN_US).answer
        assert soa[0].serial == 7


class TestTrees:
    def test_the_last_one_given_counts_whatever_its_number(self, answers: DnsAnswers) -> None:
        answers.apply(tree(9, us=("192.0.2.77",)))
        answers.apply(tree(1))
        assert addresses(answers.answer(query(), IN_US)) == [US_ADDRESS]

    def test_one_that_is_no_tree_leaves_the_one_before(self, answers: DnsAnswers) -> None:
        with pytest.raises(ValueError, match="said to be in"):
            answers.apply(with_networks(tree(2), EU, "198.51.100.0/24"))
        assert addresses(answers.answer(query(), IN_US)) == [US_ADDRESS]

    def test_where_the_networks_moved_they_are_looked_up_anew(self, answers: DnsAnswers) -> None:
        answers.apply(with_networks(tree(2), EU, "192.0.2.96/27"))
        assert addresses(answers.answer(query(), NOBODY_KNOWS)) == ["192.0.2.2"]
        assert addresses(answers.answer(query(), IN_EU)) == sorted(each for each in EVERYBODY if ":" not in each)

    def test_before_there_is_one_or_where_it_names_no_zone_nothing_is_claimed(self) -> None:
        answers = DnsAnswers()
        assert answers.answer(query(), IN_US).rcode() == dns.rcode.REFUSED
        answers.apply(RecordTree(1, 5, (), ()))
        assert answers.answer(query(), IN_US).rcode() == dns.rcode.REFUSED


class TestQueries:
    def test_what_is_no_query_is_not_done(self, answers: DnsAnswers) -> None:
        for opcode in (dns.opcode.NOTIFY, dns.opcode.UPDATE, dns.opcode.STATUS):
            other = query()
            other.set_opcode(opcode)
            assert answers.answer(other, IN_US).rcode() == dns.rcode.NOTIMP

    def test_a_later_edns_is_told_so(self, answers: DnsAnswers) -> None:
        later = dns.message.make_query(ZONE, "A", use_edns=1)
        assert answers.answer(later, IN_US).rcode() == dns.rcode.BADVERS

    def test_no_question_or_two(self, answers: DnsAnswers) -> None:
        none, two = query(), query()
        none.question = []
        two.question = [*two.question, *query(NS1).question]
        assert {answers.answer(each, IN_US).rcode() for each in (none, two)} == {dns.rcode.FORMERR}

    def test_another_class_is_not_ours(self, answers: DnsAnswers) -> None:
        chaos = dns.message.make_query("version.bind.", "TXT", "CH")
        other = dns.message.make_query(ZONE, "A", "CLASS7")
        assert {answers.answer(each, IN_US).rcode() for each in (chaos, other)} == {dns.rcode.REFUSED}

    def test_whoever_speaks_no_edns_is_answered_without(self, answers: DnsAnswers) -> None:
        plain = dns.message.make_query(ZONE, "A", use_edns=-1)
        assert answers.answer(plain, IN_US).edns == -1

    def test_nobody_has_an_answer_padded(self, answers: DnsAnswers) -> None:
        padded = query()
        padded.use_edns(0, options=[dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(4))])
        assert len(answers.answer(padded, IN_US).to_wire()) < 2 * len(padded.to_wire())

    @pytest.mark.parametrize(("payload", "most"), [(512, 512), (0, 512), (1232, 1232), (65535, 1232)])
    def test_a_datagram_is_never_fragmented(self, payload: int, most: int) -> None:
        assert datagram_max(query(payload=payload)) == most

    def test_without_edns_it_is_as_short_as_ever(self) -> None:
        assert datagram_max(dns.message.make_query(ZONE, "A", use_edns=-1)) == 512

    @given(st.binary(max_size=64), st.sampled_from(["A", "AAAA", "ANY", "HTTPS", "SRV", "SOA", "TYPE65280"]))
    def test_whatever_name_is_asked_for_there_is_one_answer(self, label: bytes, kind: str) -> None:
        name = dns.name.Name([label[:63] or b"x", *ZONE.labels])
        response = answers_from(tree()).answer(query(name, kind), IN_US)
        assert response.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN)
        assert dns.message.from_wire(response.to_wire()).id == response.id
