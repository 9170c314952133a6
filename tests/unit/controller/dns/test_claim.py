from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.dns.claim import OwnerClaim, check_claim, claim_in, refuse_foreign
from controller.dns.provider import DnsOutdated, DnsRefused
from gateway.core.vocabulary import RegionName
from tests.support.naming import tree

CLAIM = OwnerClaim.following(None, "mesh-a", 3, tree(7))


def test_it_is_read_as_it_was_written() -> None:
    assert claim_in(CLAIM.strings()) == CLAIM
    targets = replace(CLAIM, has_targets=True)
    assert claim_in(targets.strings()) == targets
    many = replace(CLAIM, regions=tuple(RegionName(f"region-{number}") for number in range(200)))
    assert claim_in(many.strings()) == many
    assert all(len(each) <= 255 for each in many.strings())


def test_what_is_too_long_for_one_record_is_refused() -> None:
    many = replace(CLAIM, regions=tuple(RegionName(f"region-{number}") for number in range(300)))
    with pytest.raises(ValueError, match=r"the names of 300 regions make .* characters, and 3800 are taken"):
        many.strings()


@pytest.mark.parametrize(
    "strings",
    [
        (),
        ("v=spf1 -all",),
        ("heritage=external-dns,external-dns/owner=x",),
        ("heritage=nightside owner=x",),
        ("heritage=nightside owner=x", "term=a version=1 writes=1 port=1 tls=1"),
    ],
)
def test_what_is_none_of_ours_is_none(strings: tuple[str, ...]) -> None:
    assert claim_in(strings) is None


def test_each_write_is_known_by_its_claim() -> None:
    assert OwnerClaim.following(CLAIM, "mesh-a", 3, tree(7)).writes == CLAIM.writes + 1


@pytest.mark.parametrize(
    ("owner", "term", "version", "raised"),
    [
        ("mesh-a", 3, 7, None),
        ("mesh-a", 4, 1, None),
        ("mesh-a", 2, 9, DnsOutdated),
        ("mesh-a", 3, 6, DnsOutdated),
        ("mesh-b", 9, 9, DnsRefused),
    ],
)
def test_who_may_write_after_it(owner: str, term: int, version: int, raised: type[Exception] | None) -> None:
    """A new term may begin with lower versions: the former leader's version may have been ahead, by its wall clock."""
    if raised is None:
        check_claim(CLAIM, owner, term, version)
        return
    with pytest.raises(raised):
        check_claim(CLAIM, owner, term, version)


def test_of_many_that_are_in_the_way_five_are_named() -> None:
    with pytest.raises(DnsRefused, match="in the way: n0, n1, n2, n3, n4 and 2 more; their owner"):
        refuse_foreign(f"n{number}" for number in range(7))
    refuse_foreign([])
