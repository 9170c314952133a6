"""Content of dynamic updates; tests/cloud sends them to name servers."""

from __future__ import annotations

import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.tsig
import pytest
from msgspec.structs import replace

from controller.dns.claim import OwnerClaim
from controller.dns.provider import DnsRefused
from controller.dns.rfc2136 import _Update
from controller.dns.rfc2136_records import ADDRESSES_MAX, Key, claim_key, owned_keys, wanted
from gateway.core.vocabulary import RegionName
from mesh.naming.tree import RecordTree
from tests.support.naming import US, US_ADDRESS, ZONE, tree, with_further

A, AAAA = dns.rdatatype.A, dns.rdatatype.AAAA
KEY = dns.tsig.Key("k", "c2VjcmV0")


def said(version: int, us: tuple[str, ...] = (US_ADDRESS,)) -> dict[Key, dns.rrset.RRset]:
    given = tree(version, us=us)
    return wanted(given, OwnerClaim.following(None, "nightside", 1, given))


def test_everything_that_is_replaced_is_asked_for_as_it_was_read() -> None:
    before, after = said(1), said(2, us=("192.0.2.9", "2001:db8::9"))
    update = _Update(ZONE, KEY, before, after)
    asked = update.message.prerequisite
    there = {(each.name, each.rdtype): each for each in asked if each.rdclass == dns.rdataclass.IN}
    absent = {(each.name, each.rdtype) for each in asked if each.rdclass == dns.rdataclass.NONE}
    us = dns.name.from_text("us-east-1", origin=ZONE)
    assert there == {key: before[key] for key in (claim_key(ZONE), (us, dns.rdatatype.A))}
    assert absent == {(us, dns.rdatatype.AAAA)}
    assert all(each.ttl == 0 for each in asked), "RFC 2136 §2.4"


def test_an_update_that_is_too_long_for_one_message_is_refused() -> None:
    """More regions than one message holds; each with an order, which takes three times the records."""

    def of(count: int) -> dict[Key, dns.rrset.RRset]:
        given = with_further(tree(), US, "203.0.113.9")
        one = next(each for each in given.areas if each.region == US)
        regions = (RegionName(f"us-east-{number}") for number in range(count))
        given = replace(given, areas=tuple(replace(one, region=each, networks=()) for each in regions))
        return wanted(given, OwnerClaim.following(None, "nightside", 1, given))

    assert _Update(ZONE, KEY, {}, of(100)).changed
    with pytest.raises(DnsRefused, match=r"an update of 1[0-9]{3} record sets is too long for one message of 60000"):
        _Update(ZONE, KEY, {}, of(200))


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert _Update(ZONE, KEY, said(1), said(1)).changed == []


def in_us(count: int, *further: str) -> set[str]:
    """Addresses published under a region's name, of so many that its own gateways have, and a further one's."""
    own = tuple(f"192.0.2.{number}" for number in range(count))
    given = tree(1, us=(*own, *further))
    areas = tuple(replace(each, further=further) if each.region == US else each for each in given.areas)
    given = replace(given, areas=areas)
    sets = wanted(given, OwnerClaim.following(None, "nightside", 1, given))
    name = dns.name.from_text(US, origin=ZONE)
    return {item.to_text() for (at, kind), each in sets.items() if at == name and kind in (A, AAAA) for item in each}


def https_at(given: RecordTree, region: str) -> list[str]:
    sets = wanted(given, OwnerClaim.following(None, "nightside", 1, given))
    found = sets.get((dns.name.from_text(region, origin=ZONE), dns.rdatatype.HTTPS), ())
    return sorted(each.to_text() for each in found)


def test_the_records_of_a_tree_are_exactly_those_under_its_claim() -> None:
    ordered = with_further(tree(1), US, "203.0.113.9")
    for given in (tree(1), ordered, replace(ordered, port=8443), replace(ordered, tls=False, port=80)):
        claim = OwnerClaim.following(None, "nightside", 1, given)
        owned = set(owned_keys(ZONE, claim))
        assert set(wanted(given, claim)) <= owned
        targets = {str(name) for name, _ in owned if str(name).startswith(("nearest.", "further."))}
        assert len(targets) == (6 if given.tls and given != tree(1) else 0)


def test_targets_have_the_trees_ttl_and_no_hints() -> None:
    given = with_further(tree(1), US, "203.0.113.9")
    sets = wanted(given, OwnerClaim.following(None, "nightside", 1, given))
    at = dns.name.from_text("nearest.us-east-1", origin=ZONE)
    assert sets[at, A].ttl == sets[dns.name.from_text(US, origin=ZONE), dns.rdatatype.HTTPS].ttl == given.ttl_s
    assert https_at(given, US) == [
        '1 nearest.us-east-1.mesh.example. alpn="http/1.1"',
        '2 further.us-east-1.mesh.example. alpn="http/1.1"',
    ]


def test_too_many_addresses_for_one_name_still_have_an_order() -> None:
    many = tuple(f"192.0.2.{number}" for number in range(ADDRESSES_MAX))
    given = with_further(tree(1, us=many), US, "203.0.113.9")
    assert [each.split()[:2] for each in https_at(given, US)] == [
        ["1", "nearest.us-east-1.mesh.example."],
        ["2", "further.us-east-1.mesh.example."],
    ]
    sets = wanted(given, OwnerClaim.following(None, "nightside", 1, given))
    counts = {
        label: len(sets[dns.name.from_text(f"{label}us-east-1", origin=ZONE), A])
        for label in ("", "nearest.", "further.")
    }
    assert counts == {"": ADDRESSES_MAX, "nearest.": ADDRESSES_MAX, "further.": 1}


def test_of_too_many_addresses_the_further_gateways_are_left_out_first() -> None:
    further = ("203.0.113.9", "2001:db8:f::9")
    assert set(further) <= in_us(ADDRESSES_MAX - 1, *further)
    assert len(in_us(ADDRESSES_MAX, *further)) == ADDRESSES_MAX
    with pytest.raises(ValueError, match=f"has {ADDRESSES_MAX + 1} addresses"):
        in_us(ADDRESSES_MAX + 1, *further)
