from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.regions import KnownRegion, RegionTable, only
from gateway.core.kernel.residency import (
    ResidencyPolicy,
    TenantPolicy,
    may_accept,
    may_process,
    processing_rule,
    within,
)
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, RegionsWithin, TenantName
from tests.support.core import EU, US, policy, table

REGIONS, JURISDICTIONS = (("a", "b", "c", "d"), ("X", "Y", "Z"))
PLACES = [Place(RegionName(region), Jurisdiction(each)) for region in REGIONS for each in JURISDICTIONS]
TENANT = TenantName("t")

regions = st.frozensets(st.sampled_from(REGIONS).map(RegionName))
jurisdictions = st.frozensets(st.sampled_from(JURISDICTIONS).map(Jurisdiction))
rules = st.builds(
    PlaceRule,
    jurisdictions,
    regions,
    regions,
    st.lists(st.builds(RegionsWithin, regions, jurisdictions), max_size=2).map(tuple),
)
tables = st.dictionaries(
    st.sampled_from(REGIONS).map(RegionName),
    st.sampled_from(JURISDICTIONS).map(lambda name: KnownRegion(Jurisdiction(name))),
).map(RegionTable)


@given(tables)
def test_the_rule_of_a_table_allows_exactly_its_places(regions: RegionTable) -> None:
    rule = regions.rule()
    for place in PLACES:
        known = regions.regions.get(place.region)
        is_there = known is not None and known.jurisdiction == place.jurisdiction
        assert rule.allows(place) == is_there == (not regions.place_fault(place))


@given(rules, rules, rules, tables)
def test_a_policy_within_a_table_allows_what_it_allowed_of_the_table_and_nothing_else(
    process: PlaceRule, accept: PlaceRule, tenant: PlaceRule, regions: RegionTable
) -> None:
    home = Place(RegionName("home"), Jurisdiction("H"))
    written = ResidencyPolicy(home, process, accept, {TENANT: TenantPolicy(tenant)})
    kept = within(written, regions)
    for place in PLACES:
        is_known = not regions.place_fault(place)
        for name in (TENANT, TenantName("another")):
            assert processing_rule(kept, name).allows(place) == (
                processing_rule(written, name).allows(place) and is_known
            )
        assert may_accept(kept, place).allowed == (accept.allows(place) and is_known)


@given(rules, tables)
def test_no_narrowing_brings_a_place_in_that_the_table_has_not(rule: PlaceRule, regions: RegionTable) -> None:
    home = Place(RegionName("home"), Jurisdiction("H"))
    own = within(ResidencyPolicy(home, PlaceRule(frozenset(map(Jurisdiction, JURISDICTIONS))), PlaceRule()), regions)
    left = narrowed(own, ResidencyPolicy(home, rule, rule))
    assert left.regions == regions, "the reason can still be told"
    for place in PLACES:
        if regions.place_fault(place):
            assert not may_process(left, TENANT, place).allowed


def test_what_a_peer_says_of_where_it_ran_is_held_against_the_table() -> None:
    """A peer's answer is checked against the rule that travels with the forward, which the table has narrowed."""
    kept = within(policy(EU, PlaceRule(frozenset({EU.jurisdiction}))), table(EU, US))
    assert processing_rule(kept, TENANT).allows(EU)
    assert not processing_rule(kept, TENANT).allows(Place(RegionName("us-west-2"), EU.jurisdiction))
    assert not processing_rule(kept, TENANT).allows(Place(US.region, EU.jurisdiction))


def test_a_region_without_a_table_knows_itself() -> None:
    assert only(EU).place_fault(EU) == ""
    assert only(EU).place_fault(US) == "region us-east-1 is not in the operators' table of regions"
