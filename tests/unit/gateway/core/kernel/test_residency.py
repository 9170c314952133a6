from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.kernel.residency import (
    LoggingRule,
    ResidencyPolicy,
    TenantPolicy,
    accepted_origins,
    both,
    closed_policy,
    may_accept,
    may_enter,
    may_hold_records,
    may_process,
    may_process_under,
    refusal_of,
)
from gateway.core.vocabulary import (
    Jurisdiction,
    Place,
    PlaceRule,
    RefusalReason,
    RegionName,
    RegionsWithin,
    TenantName,
)
from tests.support.core import stamp_of

REGIONS = ["eu-west-1", "eu-central-1", "eu-west-2", "us-east-1"]
JURISDICTIONS = ["EU", "UK", "US"]
ANYONE = TenantName("anyone")
CLINIC = TenantName("clinic")

region_names = st.sampled_from(REGIONS).map(RegionName)
jurisdiction_names = st.sampled_from(JURISDICTIONS).map(Jurisdiction)
places = st.builds(Place, region_names, jurisdiction_names)
plain_rules = st.builds(
    PlaceRule, st.frozensets(jurisdiction_names), st.frozensets(region_names), st.frozensets(region_names)
)
rules = plain_rules | st.builds(both, plain_rules, plain_rules)
tenants = st.sampled_from([ANYONE, CLINIC])
policies = st.builds(
    ResidencyPolicy,
    place=places,
    process=rules,
    accept=rules,
    tenants=st.dictionaries(st.just(CLINIC), st.builds(TenantPolicy, rules)),
    digest=st.just("d"),
)
closed_policies = st.builds(closed_policy, places, st.just("the file is missing"))


def place(region: str, jurisdiction: str) -> Place:
    return Place(RegionName(region), Jurisdiction(jurisdiction))


def rule(jurisdictions: str = "", regions: str = "", denied: str = "") -> PlaceRule:
    return PlaceRule(
        frozenset(map(Jurisdiction, jurisdictions.split())),
        frozenset(map(RegionName, regions.split())),
        frozenset(map(RegionName, denied.split())),
    )


DUBLIN = place("eu-west-1", "EU")
FRANKFURT = place("eu-central-1", "EU")
VIRGINIA = place("us-east-1", "US")
EU = ResidencyPolicy(DUBLIN, process=rule("EU"), accept=rule("EU US"))
US = ResidencyPolicy(VIRGINIA, process=rule("US EU"), accept=rule("US"))


def test_a_region_closed_outwards_may_still_take_others_overflow() -> None:
    assert not may_process(EU, ANYONE, VIRGINIA).allowed
    assert refusal_of(US, stamp_of(EU, ANYONE)) is not None
    assert may_process(US, ANYONE, DUBLIN).allowed
    assert refusal_of(EU, stamp_of(US, ANYONE)) is None


def test_the_receiver_refuses_an_origin_it_does_not_accept_even_with_a_generous_stamp() -> None:
    generous = replace(stamp_of(EU, ANYONE), rule=rule("EU US"))
    assert refusal_of(US, generous) == (
        RefusalReason.RESIDENCY_NOT_ACCEPTED,
        "accept names neither region eu-west-1 nor jurisdiction EU",
    )


def test_the_receiver_refuses_what_the_stamp_does_not_allow_even_from_an_accepted_origin() -> None:
    careless = ResidencyPolicy(VIRGINIA, process=rule("US"), accept=rule("US EU"))
    assert refusal_of(careless, stamp_of(EU, ANYONE)) == (
        RefusalReason.RESIDENCY_STAMP,
        "process names neither region us-east-1 nor jurisdiction US",
    )


def test_a_denied_region_is_out_though_its_name_and_its_jurisdiction_are_named() -> None:
    policy = replace(EU, process=rule("EU", regions="eu-central-1", denied="eu-central-1"))
    assert may_process(policy, ANYONE, FRANKFURT).why == "process denies region eu-central-1"
    assert not may_process(policy, ANYONE, FRANKFURT).allowed


@pytest.mark.parametrize(
    ("allowing", "why"),
    [
        (rule("EU"), "process names jurisdiction EU"),
        (rule(regions="eu-central-1"), "process names region eu-central-1"),
    ],
)
def test_a_verdict_names_what_decided(allowing: PlaceRule, why: str) -> None:
    verdict = may_process(replace(EU, process=allowing), ANYONE, FRANKFURT)
    assert verdict.allowed
    assert verdict.why == why


def test_a_tenants_rule_replaces_the_regions_in_both_directions() -> None:
    policy = replace(EU, tenants={CLINIC: TenantPolicy(rule(regions="us-east-1"))})
    assert may_process(policy, CLINIC, VIRGINIA).allowed
    assert not may_process(policy, CLINIC, FRANKFURT).allowed
    assert may_process(policy, ANYONE, FRANKFURT).allowed


def test_a_tenants_rule_may_leave_out_the_region_where_its_request_arrives() -> None:
    policy = replace(EU, tenants={CLINIC: TenantPolicy(rule(regions="eu-central-1"))})
    assert not may_enter(policy, CLINIC).allowed
    assert may_enter(policy, ANYONE).allowed


def test_a_tenants_stamp_binds_the_receiver() -> None:
    origin = replace(US, tenants={CLINIC: TenantPolicy(rule("US"))})
    assert refusal_of(EU, stamp_of(origin, ANYONE)) is None
    refusal = refusal_of(EU, stamp_of(origin, CLINIC))
    assert refusal is not None
    assert refusal[0] is RefusalReason.RESIDENCY_STAMP


def test_a_sibling_in_the_same_region_needs_no_mention_in_accept() -> None:
    nobody = replace(EU, accept=rule())
    assert refusal_of(nobody, stamp_of(nobody, ANYONE)) is None
    assert refusal_of(nobody, stamp_of(replace(US, process=rule("EU")), ANYONE)) is not None


def test_the_same_region_name_under_another_jurisdiction_is_no_sibling() -> None:
    impostor = place("eu-west-1", "US")
    assert not may_accept(replace(EU, accept=rule("EU")), impostor).allowed


def test_a_closed_policy_serves_home_and_tells_peers_no_details() -> None:
    closed = closed_policy(DUBLIN, "tenants.clinic.process: allows nowhere")
    assert may_enter(closed, CLINIC).allowed
    for verdict in (may_process(closed, ANYONE, VIRGINIA), may_accept(closed, VIRGINIA)):
        assert verdict.why == "closed: this region has no usable policy"
    assert closed.closed_reason == "tenants.clinic.process: allows nowhere"


@given(closed_policies, rules, places)
def test_under_a_closed_policy_a_tenant_s_rule_only_takes_away(
    closed: ResidencyPolicy, own: PlaceRule, somewhere: Place
) -> None:
    known = replace(closed, tenants={CLINIC: TenantPolicy(own)})
    at_home = somewhere.region == closed.place.region
    assert may_process(known, CLINIC, somewhere).allowed == (at_home and own.allows(somewhere))


def test_a_closed_policy_logs_as_little_as_possible() -> None:
    assert closed_policy(DUBLIN, "missing").logging == LoggingRule(
        tenant=False, client_address=False, session_key=False
    )


def test_a_closed_policy_has_a_reason() -> None:
    with pytest.raises(AssertionError, match="says why"):
        closed_policy(DUBLIN, "")


@given(closed_policies, tenants, places)
def test_nothing_leaves_a_closed_region(closed: ResidencyPolicy, tenant: TenantName, other: Place) -> None:
    assert may_process(closed, tenant, other).allowed == (other.region == closed.place.region)


@given(closed_policies, policies, tenants)
def test_nothing_comes_into_a_closed_region(
    closed: ResidencyPolicy, origin: ResidencyPolicy, tenant: TenantName
) -> None:
    refusal = refusal_of(closed, stamp_of(origin, tenant))
    assert refusal is not None
    assert refusal[0] is RefusalReason.RESIDENCY_NOT_ACCEPTED


@given(rules, places)
def test_deny_wins(any_rule: PlaceRule, somewhere: Place) -> None:
    denying = replace(any_rule, denied_regions=any_rule.denied_regions | {somewhere.region})
    assert not denying.allows(somewhere)


@given(rules, places, region_names)
def test_denying_more_never_allows_more(any_rule: PlaceRule, somewhere: Place, denied: RegionName) -> None:
    stricter = replace(any_rule, denied_regions=any_rule.denied_regions | {denied})
    assert stricter.allows(somewhere) <= any_rule.allows(somewhere)


@given(places)
def test_a_rule_that_names_nothing_allows_nothing(somewhere: Place) -> None:
    assert not PlaceRule().allows(somewhere)


@given(policies, policies, tenants)
def test_a_forward_comes_in_exactly_when_both_ends_allow_it(
    origin: ResidencyPolicy, receiver: ResidencyPolicy, tenant: TenantName
) -> None:
    sent = may_process(origin, tenant, receiver.place).allowed
    accepted = origin.place == receiver.place or receiver.accept.allows(origin.place)
    assert (refusal_of(receiver, stamp_of(origin, tenant)) is None) == (sent and accepted)


@given(policies | closed_policies, places)
def test_an_adopter_is_told_of_the_origins_that_the_region_accepts(policy: ResidencyPolicy, origin: Place) -> None:
    told = accepted_origins(policy).allows(origin)
    if policy.place.region in policy.accept.denied_regions:  # no file may say that
        assert told <= may_accept(policy, origin).allowed
    else:
        assert told == may_accept(policy, origin).allowed


@given(policies, policies, rules, tenants)
def test_whom_a_region_accepts_has_no_say_in_what_it_sends(
    policy: ResidencyPolicy, other: ResidencyPolicy, accept: PlaceRule, tenant: TenantName
) -> None:
    assert may_process(policy, tenant, other.place) == may_process(replace(policy, accept=accept), tenant, other.place)


@given(policies, places, rules, rules)
def test_one_tenants_rule_concerns_no_other(
    policy: ResidencyPolicy, somewhere: Place, first: PlaceRule, second: PlaceRule
) -> None:
    one, other = (replace(policy, tenants={CLINIC: TenantPolicy(each)}) for each in (first, second))
    assert may_process(one, ANYONE, somewhere) == may_process(other, ANYONE, somewhere)
    assert may_process(one, CLINIC, somewhere).allowed == first.allows(somewhere)


@given(rules, rules, places)
def test_both_rules_allow_exactly_what_each_of_them_does(one: PlaceRule, other: PlaceRule, somewhere: Place) -> None:
    assert both(one, other).allows(somewhere) == (one.allows(somewhere) and other.allows(somewhere))


@given(rules, rules, rules)
def test_it_does_not_matter_which_rule_comes_first_or_how_often(
    one: PlaceRule, other: PlaceRule, third: PlaceRule
) -> None:
    together = both(one, other)
    assert together == both(other, one)
    assert both(together, other) == together
    assert both(together, together) == together
    assert len(both(together, third).regions_within) <= 16


@given(rules, rules, places)
def test_whoever_knows_no_regions_within_reads_a_rule_narrower(
    one: PlaceRule, other: PlaceRule, somewhere: Place
) -> None:
    together = both(one, other)
    as_read = replace(together, regions_within=())
    assert as_read.allows(somewhere) <= together.allows(somewhere)


def test_a_region_and_its_jurisdiction_leave_the_region_within_it() -> None:
    left = both(rule("EU", regions="us-east-1"), rule(regions="eu-west-1 us-east-1", denied="eu-central-1"))
    assert left == PlaceRule(
        regions=frozenset({VIRGINIA.region}),
        denied_regions=frozenset({FRANKFURT.region}),
        regions_within=(RegionsWithin(frozenset({DUBLIN.region}), frozenset({DUBLIN.jurisdiction})),),
    )
    verdict = may_process(replace(EU, process=left), ANYONE, DUBLIN)
    assert verdict.allowed
    assert verdict.why == "process names region eu-west-1 within jurisdiction EU"
    assert not left.allows(place("eu-west-1", "US"))


def test_a_key_s_rule_may_keep_a_request_out_and_never_lets_one_in() -> None:
    assert may_enter(EU, ANYONE, rule("EU")).allowed
    refused = may_enter(EU, ANYONE, rule("EU", denied="eu-west-1"))
    assert refused.why == "the key's own rule: process denies region eu-west-1"
    assert not refused.allowed
    closed_out = replace(EU, tenants={CLINIC: TenantPolicy(rule(regions="eu-central-1"))})
    assert not may_enter(closed_out, CLINIC, rule("EU")).allowed


@given(policies, tenants, places, rules)
def test_a_key_can_only_narrow_where_it_is_processed(
    policy: ResidencyPolicy, tenant: TenantName, place: Place, narrower: PlaceRule
) -> None:
    verdict = may_process(policy, tenant, place, narrower)
    assert verdict.allowed == (may_process(policy, tenant, place).allowed and narrower.allows(place))
    if may_process(policy, tenant, place).allowed and not verdict.allowed:
        assert verdict.why.startswith("the key's own rule: ")


@given(policies, tenants, places)
def test_a_stamp_allows_what_its_origin_allowed(policy: ResidencyPolicy, tenant: TenantName, place: Place) -> None:
    assert may_process_under(stamp_of(policy, tenant), place).allowed == may_process(policy, tenant, place).allowed


def test_records_of_all_tenants_may_only_be_where_each_of_them_may() -> None:
    assert may_hold_records(US, DUBLIN).allowed
    strict = replace(US, tenants={CLINIC: TenantPolicy(rule("US"))})
    assert may_hold_records(strict, DUBLIN).why == "process names neither region eu-west-1 nor jurisdiction EU"
    assert may_hold_records(strict, VIRGINIA).allowed
    wider = replace(EU, tenants={CLINIC: TenantPolicy(rule("EU US"))})
    assert not may_hold_records(wider, VIRGINIA).allowed
    closed = closed_policy(DUBLIN, "no file")
    assert (may_hold_records(closed, DUBLIN).allowed, may_hold_records(closed, FRANKFURT).allowed) == (True, False)


@given(policies | closed_policies, places, tenants)
def test_where_records_may_be_each_tenants_requests_may_be_processed(
    policy: ResidencyPolicy, there: Place, tenant: TenantName
) -> None:
    if there != policy.place and may_hold_records(policy, there).allowed:
        assert may_process(policy, tenant, there).allowed
