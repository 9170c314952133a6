from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.kernel.narrowing import allowed_by_all, narrowed
from gateway.core.kernel.residency import (
    LoggingRule,
    ResidencyPolicy,
    TenantPolicy,
    both,
    closed_policy,
    may_accept,
    may_enter,
    may_process,
)
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, TenantName

DUBLIN = Place(RegionName("eu-west-1"), Jurisdiction("EU"))
VIRGINIA = Place(RegionName("us-east-1"), Jurisdiction("US"))
CLINIC, BANK, ANYONE = TenantName("clinic"), TenantName("bank"), TenantName("anyone")

region_names = st.sampled_from(["eu-west-1", "eu-central-1", "us-east-1"]).map(RegionName)
jurisdiction_names = st.sampled_from(["EU", "US"]).map(Jurisdiction)
places = st.builds(Place, region_names, jurisdiction_names)
plain_rules = st.builds(
    PlaceRule, st.frozensets(jurisdiction_names), st.frozensets(region_names), st.frozensets(region_names, max_size=1)
)
rules = plain_rules | st.builds(both, plain_rules, plain_rules)
tenants = st.sampled_from([CLINIC, BANK, ANYONE])


def policies(digest: str) -> st.SearchStrategy[ResidencyPolicy]:
    """Policies of one region: as read from a file, or closed because the file is missing."""
    as_filed = st.builds(
        ResidencyPolicy,
        place=st.just(DUBLIN),
        process=rules,
        accept=rules,
        tenants=st.dictionaries(st.sampled_from([CLINIC, BANK]), st.builds(TenantPolicy, rules)),
        logging=st.builds(LoggingRule, st.booleans(), st.booleans(), st.booleans()),
        digest=st.just(digest),
    )
    return as_filed | st.just(closed_policy(DUBLIN, "the file is missing"))


locals_ = policies("own")
controllers = policies("mesh")


@given(locals_, controllers, tenants, places)
def test_a_tenant_s_requests_go_exactly_where_both_policies_say(
    local: ResidencyPolicy, other: ResidencyPolicy, tenant: TenantName, place: Place
) -> None:
    each_says = may_process(local, tenant, place).allowed and may_process(other, tenant, place).allowed
    assert may_process(narrowed(local, other), tenant, place).allowed == each_says


@given(locals_, controllers, tenants)
def test_a_tenant_enters_exactly_where_both_policies_say(
    local: ResidencyPolicy, other: ResidencyPolicy, tenant: TenantName
) -> None:
    each_says = may_enter(local, tenant).allowed and may_enter(other, tenant).allowed
    assert may_enter(narrowed(local, other), tenant).allowed == each_says


@given(locals_, controllers, places)
def test_an_origin_is_accepted_exactly_where_both_policies_say(
    local: ResidencyPolicy, other: ResidencyPolicy, place: Place
) -> None:
    each_says = may_accept(local, place).allowed and may_accept(other, place).allowed
    assert may_accept(narrowed(local, other), place).allowed == each_says


@given(locals_, controllers)
def test_logs_show_what_both_let_them_and_either_closes_the_region(
    local: ResidencyPolicy, other: ResidencyPolicy
) -> None:
    left = narrowed(local, other)
    for name in ("tenant", "client_address", "session_key"):
        assert getattr(left.logging, name) == (getattr(local.logging, name) and getattr(other.logging, name))
    assert bool(left.closed_reason) == bool(local.closed_reason or other.closed_reason)


@given(locals_, controllers)
def test_to_narrow_once_more_changes_nothing(local: ResidencyPolicy, other: ResidencyPolicy) -> None:
    once = narrowed(local, other)
    assert narrowed(once, other) == once


@given(locals_, controllers, places, tenants, places)
def test_what_is_meant_for_another_place_closes_the_region(
    local: ResidencyPolicy, other: ResidencyPolicy, elsewhere: Place, tenant: TenantName, somewhere: Place
) -> None:
    if elsewhere == DUBLIN:
        return
    left = narrowed(local, replace(other, place=elsewhere))
    assert left.place == DUBLIN
    assert left.closed_reason
    assert not may_accept(left, somewhere).allowed
    assert may_process(left, tenant, somewhere).allowed == (
        may_process(local, tenant, somewhere).allowed and somewhere.region == DUBLIN.region
    )


def test_the_reason_names_whose_policy_is_of_no_use() -> None:
    own = ResidencyPolicy(DUBLIN, process=PlaceRule(regions=frozenset({DUBLIN.region})), accept=PlaceRule())
    assert narrowed(own, closed_policy(DUBLIN, "no file")).closed_reason == "the controller's policy is closed: no file"
    assert narrowed(own, replace(own, place=VIRGINIA)).closed_reason == (
        "the controller's policy is closed: it is for us-east-1 (US), and this region is eu-west-1 (EU)"
    )
    assert narrowed(closed_policy(DUBLIN, "no file"), own).closed_reason == "no file"


def test_a_digest_names_both_policies_and_stays_short_enough_to_travel() -> None:
    own = ResidencyPolicy(DUBLIN, process=PlaceRule(), accept=PlaceRule(), digest="1a2b")
    left = narrowed(own, replace(own, digest="3c4d"))
    assert (left.digest, left.narrowed_by) == ("1a2b+3c4d", "3c4d")
    assert len(narrowed(own, replace(own, digest="x+" * 500)).digest) <= 128


def test_policies_of_gateways_are_not_called_the_controllers() -> None:
    own = ResidencyPolicy(DUBLIN, process=PlaceRule(), accept=PlaceRule(), digest="1a2b")
    both = allowed_by_all([own, own, replace(own, digest="3c4d"), replace(own, digest="1a2b+3c4d")])
    assert (both.digest, both.narrowed_by) == ("1a2b+3c4d", "")
    assert allowed_by_all([own, closed_policy(DUBLIN, "no file")]).closed_reason == "no file"


def test_a_refusal_says_that_the_region_s_own_file_does_not_tell_all() -> None:
    everywhere = PlaceRule(jurisdictions=frozenset({DUBLIN.jurisdiction, VIRGINIA.jurisdiction}))
    own = ResidencyPolicy(DUBLIN, process=everywhere, accept=everywhere, digest="own")
    at_home = PlaceRule(regions=frozenset({DUBLIN.region}))
    left = narrowed(own, replace(own, process=at_home, accept=at_home, digest="mesh"))
    assert may_process(left, ANYONE, VIRGINIA).why == (
        "process, as the controller narrows it, names neither region us-east-1 nor jurisdiction US"
    )
    assert may_accept(left, VIRGINIA).why == (
        "accept, as the controller narrows it, names neither region us-east-1 nor jurisdiction US"
    )
    assert may_process(left, ANYONE, DUBLIN).why == "process names region eu-west-1 within jurisdiction EU"
