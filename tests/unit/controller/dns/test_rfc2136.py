"""Content of dynamic updates; tests/cloud sends them to name servers."""

from __future__ import annotations

import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.tsig

from controller.dns.claim import OwnerClaim
from controller.dns.rfc2136 import _Update
from controller.dns.rfc2136_records import Key, claim_key, wanted
from tests.support.naming import US_ADDRESS, ZONE, tree

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
