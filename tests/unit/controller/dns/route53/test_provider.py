"""Content of Route53 batches, as the API would receive it; tests/cloud asks the API itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Never

import pytest
from msgspec.structs import replace

from controller.dns.config import Route53Config
from controller.dns.provider import DnsError, DnsOutdated, DnsRefused, DnsUnavailable, changes_between
from controller.dns.route53.api import BatchRefused, Route53Api
from controller.dns.route53.changes import Action, RecordChange
from controller.dns.route53.layout import SETS_MAX
from controller.dns.route53.provider import Route53Dns
from controller.dns.route53.record_sets import RecordSet
from controller.lease import Lease
from gateway.core.vocabulary import RegionName
from mesh.clock import Clock
from mesh.naming.tree import Area, RecordTree
from tests.support.clock import StillClock
from tests.support.naming import AP, EU, US, area, tree, with_further

ZONE = "mesh.example."
CONFIG = Route53Config(hosted_zone="Z1", requests_per_s=1000)


class Written(Route53Api):
    """Keeps record sets as Route53 does: a batch applies as a whole or not at all, and deletes only record sets that
    match exactly."""

    def __init__(self, shared: dict[tuple[str, str, str], RecordSet] | None = None) -> None:
        clock = Clock()
        super().__init__(CONFIG, Lease(clock, 1, None), clock, make_client=_no_client, rng=random.Random(0))
        self.sets = {} if shared is None else shared
        self.batches: list[Sequence[RecordChange]] = []

    async def records(self, _zone: str) -> list[RecordSet]:
        return list(self.sets.values())

    async def change(self, changes: Sequence[RecordChange], _comment: str) -> str:
        self.batches.append(changes)
        sets = dict(self.sets)
        for each in changes:
            key = each.record_set.key
            if each.action is Action.DELETE and sets.pop(key, None) != each.record_set:
                raise BatchRefused(f"{key} is not so")
            if each.action is Action.CREATE and key in sets:
                raise BatchRefused(f"{key} is there")
            if each.action is not Action.DELETE:
                sets[key] = each.record_set
        self.sets.clear()
        self.sets.update(sets)
        return f"C{len(self.batches)}"

    async def is_in_sync(self, _change_id: str) -> bool:
        return True


def _no_client() -> Never:
    raise AssertionError("nobody is asked")


def provider(api: Written, term: int = 1, config: Route53Config = CONFIG) -> Route53Dns:
    clock = StillClock()
    return Route53Dns(config, api, ZONE, "nightside", Lease(clock, term, None), clock=clock)


async def publish(at: Route53Dns, given: RecordTree, before: RecordTree | None = None) -> int:
    return await at.publish(given, changes_between(before, given))


async def test_a_batch_takes_away_the_claim_as_it_was_read() -> None:
    api = Written()
    one = provider(api)
    await publish(one, tree())
    claim = api.sets["_nightside.mesh.example.", "TXT", ""]
    await publish(one, tree(2, us=("192.0.2.9",)), tree())
    assert api.batches[1][0] == RecordChange(Action.DELETE, claim)
    assert api.batches[1][1].action is Action.CREATE
    assert api.batches[1][1].record_set.key == claim.key


async def test_whoever_was_deposed_cannot_write() -> None:
    api = Written()
    deposed, leads = provider(api, 1), provider(api, 2)
    await publish(deposed, tree())
    await publish(leads, tree())
    before = dict(api.sets)
    with pytest.raises(DnsOutdated, match="term 2"):
        await publish(deposed, tree(2, us=("192.0.2.66",)), tree())
    assert api.sets == before


async def test_the_claim_comes_before_all_else_and_those_who_lead_after_those_who_are_led_to() -> None:
    api = Written()
    await publish(provider(api), tree())
    names = [each.record_set.name for each in api.batches[0]]
    assert names[0] == "_nightside.mesh.example."
    for each in api.batches[0]:
        alias = each.record_set.alias
        if alias is not None:
            assert alias.name in names[: names.index(each.record_set.name)]


async def test_another_zone_is_another_providers() -> None:
    with pytest.raises(DnsRefused, match=r"version 2 is of other.example., and mesh.example. is published"):
        await publish(provider(Written()), replace(tree(2), zone="other.example."))


async def test_a_write_needs_a_lease_that_lasts() -> None:
    """The lease is checked in the API class, directly before the write is sent."""
    clock = StillClock()
    lease = Lease(clock, 1, 3_000_000_000)
    api = Route53Api(CONFIG, lease, clock, make_client=_no_client, rng=random.Random(0))
    api._client = object()  # type: ignore[assignment]
    with pytest.raises(DnsUnavailable, match=r"the lease lasts 3.0 s, and this may take 3.0 s"):
        await api.change([], "")
    api.close()


def addresses_at(api: Written, beginning: str) -> set[str]:
    return {text for each in api.sets.values() if each.name.startswith(beginning) for text in each.values}


async def test_addresses_that_do_not_fit_are_left_out_and_named_and_the_rest_is_published() -> None:
    api = Written()
    one = provider(api)
    many = tuple(f"192.0.2.{last}" for last in range(SETS_MAX + 5))
    await publish(one, tree(us=(*many, "2001:db8::1"), eu=("198.51.100.1",)))
    assert addresses_at(api, "us-east-1.pool.") == {*many[:SETS_MAX], "2001:db8::1"}
    with pytest.raises(DnsError, match=r"takes the first 100 of .*: us-east-1.pool._nightside.mesh.example. A 105$"):
        await one.settle()


async def test_addresses_for_unknown_places_are_written_only_where_no_region_is_open() -> None:
    """Each of many regions fits, and all of their addresses together do not."""
    api = Written()
    one = provider(api, config=replace(CONFIG, locations={"EU": ("DE",), "US": ("US",), "AP": ("JP",)}))
    us, eu = (tuple(f"192.0.{net}.{last}" for last in range(80)) for net in (2, 3))
    crowd = replace(tree(us=us, eu=eu), anywhere=(*us, *eu))
    await publish(one, crowd)
    assert addresses_at(api, "anywhere.") == set()
    closed = tree(2, closed=frozenset({EU, US, AP}))
    await publish(one, closed, crowd)
    assert addresses_at(api, "anywhere.") == set(closed.anywhere)
    await publish(one, tree(3), closed)
    assert addresses_at(api, "anywhere.") == set()


def crowded(version: int, *, further: bool, more: tuple[Area, ...] = ()) -> RecordTree:
    """Tree with more addresses than one batch holds."""
    given = with_further(tree(version), EU, "192.0.2.31", "2001:db8::31") if further else tree(version)
    crowd = (
        replace(area(US, *(f"10.0.{number}.{last}" for last in range(90))), region=RegionName(f"us-{number}"))
        for number in range(7)
    )
    others = tuple(replace(each, networks=()) for each in (*crowd, *more))
    return replace(given, areas=(*given.areas, *others))


def faults_of(api: Written, number: int) -> list[str]:
    """HTTPS records that lead to names without an address, and aliases without a target, after so many batches."""
    sets: dict[tuple[str, str, str], RecordSet] = {}
    for each in (change for batch in api.batches[:number] for change in batch):
        if each.action is Action.DELETE:
            sets.pop(each.record_set.key)
        else:
            sets[each.record_set.key] = each.record_set
    names = {each.name for each in sets.values() if each.kind in {"A", "AAAA"}}
    https = [(each.name, text.split()[1]) for each in sets.values() if each.kind == "HTTPS" for text in each.values]
    aliases = [(each.name, each.alias.name) for each in sets.values() if each.alias is not None]
    return [f"{name} -> {target}" for name, target in (*https, *aliases) if target not in {*names, "."}]


async def test_after_each_batch_https_records_lead_to_names_that_are_there() -> None:
    api = Written()
    one = provider(api)
    first, second = crowded(1, further=True), crowded(2, further=False)
    other_ttl = replace(second, ttl_s=9)
    await publish(one, first)
    await publish(one, other_ttl, first)
    await publish(one, replace(first, version=3), other_ttl)
    gone = replace(other_ttl, version=4, areas=tuple(each for each in other_ttl.areas if each.region != EU))
    await publish(one, gone, first)
    assert len(api.batches) > 4, "some writes take several batches"
    assert [faults_of(api, number) for number in range(1, len(api.batches) + 1)] == [[]] * len(api.batches)
    assert not [name for name, _, _ in api.sets if "nearest" in name or "further" in name]


async def test_until_the_last_batch_the_claim_is_on_targets_of_both_trees() -> None:
    for before, after in ((True, False), (False, True)):
        api = Written()
        one = provider(api)
        first = crowded(1, further=before)
        await publish(one, first)
        written = len(api.batches)
        await publish(one, replace(crowded(2, further=after), ttl_s=9), first)
        claims = [" ".join(batch[1].record_set.values) for batch in api.batches[written:]]
        assert len(claims) > 1
        assert all("targets=1" in each for each in claims[:-1])
        assert f"targets={int(after)}" in claims[-1]


async def test_a_record_of_others_at_a_target_is_refused_also_where_only_the_claim_between_would_cover_it() -> None:
    api = Written()
    one = provider(api)
    first = crowded(1, further=True)
    await publish(one, first)
    foreign = RecordSet("nearest.eu-central-1.mesh.example.", "A", ttl_s=60, values=("192.0.2.200",))
    api.sets[foreign.key] = foreign
    central = replace(first.areas[1], region=RegionName("eu-central-1"), networks=(), further=())
    with pytest.raises(DnsRefused, match=r"in the way: nearest.eu-central-1.mesh.example. A;"):
        await publish(one, replace(crowded(2, further=False, more=(central,)), ttl_s=9), first)
    assert api.sets[foreign.key] == foreign


async def test_a_region_without_a_gateway_has_no_https_record() -> None:
    api = Written()
    one = provider(api)
    await publish(one, tree())
    assert {name for name, kind, _ in api.sets if kind == "HTTPS"} == {
        ZONE,
        "eu-west-1.mesh.example.",
        "us-east-1.mesh.example.",
    }
    await publish(one, tree(2, eu=()), tree())
    assert ("eu-west-1.mesh.example.", "HTTPS", "") not in api.sets
