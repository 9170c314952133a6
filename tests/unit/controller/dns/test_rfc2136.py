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
from controller.dns.rfc2136 import _Update
from controller.dns.rfc2136_records import ADDRESSES_MAX, Key, claim_key, wanted
from tests.support.naming import US, US_ADDRESS, ZONE, tree

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


def test_of_too_many_addresses_the_further_gateways_are_left_out_first() -> None:
    further = ("203.0.113.9", "2001:db8:f::9")
    assert set(further) <= in_us(ADDRESSES_MAX - 1, *further)
    assert len(in_us(ADDRESSES_MAX, *further)) == ADDRESSES_MAX
    with pytest.raises(ValueError, match=f"has {ADDRESSES_MAX + 1} addresses"):
        in_us(ADDRESSES_MAX + 1, *further)
