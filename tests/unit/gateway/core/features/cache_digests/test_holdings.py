"""Entries of all replicas: their bound, their groups, and blocks that stand in several of them."""

from __future__ import annotations

import pytest

from gateway.core.features.cache_digests import holdings
from gateway.core.features.cache_digests.holdings import Holdings, group_under
from gateway.core.vocabulary import PREFIX_HASH_BYTES, TenantName
from tests.support.core import AP, EU, US, rule

ACME, BETA = TenantName("acme"), TenantName("beta")


def chain(first: int, blocks: int = 4) -> bytes:
    return b"".join((first + block).to_bytes(PREFIX_HASH_BYTES, "big") for block in range(blocks))


def record(held: Holdings, tenant: TenantName, first: int, slot: int) -> None:
    group = group_under(tenant, rule(US, EU), [EU, AP])
    held.record(group, chain(first), 4, slot, first, blocks_max=0)
    assert held.violations() == []


def test_the_bound_counts_each_replica_s_copies() -> None:
    held = Holdings(10)
    for slot in range(5):
        record(held, ACME, 100, slot)
    assert sum(len(cache.entries) for cache in held._caches.values()) == 10


def test_a_group_names_only_places_of_peers() -> None:
    assert group_under(ACME, rule(US, EU), [EU, AP, EU]) == (ACME, (EU,))


def test_a_group_goes_with_its_last_entry_and_its_number_is_not_given_again() -> None:
    held = Holdings(100)
    record(held, ACME, 100, 0)
    (before,) = held.groups
    held.forget(0)
    assert held.groups == {}
    record(held, ACME, 100, 0)
    (after,) = held.groups
    assert after != before


def test_at_the_limit_of_groups_there_is_room_for_known_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "GROUPS_MAX", 1)
    held = Holdings(100)
    record(held, ACME, 100, 0)
    assert held.has_room_for(group_under(ACME, rule(EU), [EU]))
    assert not held.has_room_for(group_under(BETA, rule(EU), [EU]))


def test_a_block_that_two_tenants_of_one_domain_hold_stays_with_the_second() -> None:
    held = Holdings(100)
    record(held, ACME, 100, 0)
    record(held, BETA, 100, 1)
    (gone, *_) = held._caches[0].entries
    held.forget(0)
    (left,) = held.alike(gone)
    assert left in held._holders
    assert held.violations() == []
