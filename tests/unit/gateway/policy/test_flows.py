from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.kernel.residency import may_enter, may_process, refusal_of
from gateway.policy.flows import Region, flows_between, one_of, region_of
from tests.support.core import stamp_of
from tests.support.nightly import examples
from tests.support.policies import Rule, Stated, by_jurisdiction, by_region, stated


def read(*policies: Stated) -> list[Region]:
    return [region_of(*each) for each in policies]


def test_tenants_treated_alike_stand_together_behind_everyone_without_a_rule() -> None:
    rules = {
        "clinic": {"process": by_region("lyon")},
        "court": {"process": by_jurisdiction("US")},
        "bank": {"process": by_region("dublin")},
        "shop": {"process": by_region("dublin")},
    }
    (dublin,) = read(stated("dublin", "EU", tenants=rules))
    assert dublin.groups == [(), ("clinic", "court"), ("bank", "shop")]


def test_who_is_refused_on_arrival_is_sent_nowhere_even_where_its_rule_names_the_place() -> None:
    dublin = stated("dublin", "EU", tenants={"clinic": {"process": by_region("lyon")}})
    flow = flows_between(read(dublin, stated("lyon", "EU", accept=by_region("dublin"))))[1]
    assert flow.tenants == ("clinic",)
    assert (flow.process.allowed, flow.process.why) == (False, "requests are refused on arrival")
    assert flow.accept.allowed
    assert not flow.allowed


def test_a_flow_goes_one_way() -> None:
    regions = read(stated("dublin", "EU"), stated("lyon", "EU", accept=by_jurisdiction("EU")))
    allowed = {(flow.origin.region, flow.target.region): flow.allowed for flow in flows_between(regions)}
    assert allowed == {("dublin", "lyon"): True, ("lyon", "dublin"): False}


# The flows and the gateways give the same answers.

REGIONS = {"a1": "A", "a2": "A", "b1": "B"}


@st.composite
def rules(draw: st.DrawFn, home: str | None = None) -> Rule:
    """A rule without contradictions; with `home`, one that a region's `process` may be."""
    fates = {region: draw(st.sampled_from(["named", "denied", "neither"])) for region in REGIONS if region != home}
    return {
        "jurisdictions": draw(st.lists(st.sampled_from(["A", "B"]), min_size=1, unique=True)),
        "regions": [region for region, fate in fates.items() if fate == "named"] + ([home] if home else []),
        "denied_regions": [region for region, fate in fates.items() if fate == "denied"],
    }


def sections(home: str) -> st.SearchStrategy[dict[str, Any]]:
    accept = rules().map(lambda rule: {**rule, "denied_regions": [x for x in rule["denied_regions"] if x != home]})
    tenants = st.dictionaries(st.just("bank"), st.fixed_dictionaries({"process": rules()}))
    return st.fixed_dictionaries({"process": rules(home), "accept": accept | st.just({}), "tenants": tenants})


@settings(max_examples=examples(few=20, night=200))
@given(st.fixed_dictionaries({region: sections(region) for region in REGIONS}))
def test_the_flows_are_what_the_gateways_allow(content: dict[str, dict[str, Any]]) -> None:
    regions = read(*(stated(name, REGIONS[name], **section) for name, section in content.items()))
    policies = {region.place: region.policy for region in regions}
    for flow in flows_between(regions):
        origin, target, tenant = policies[flow.origin], policies[flow.target], one_of(flow.tenants)
        at_origin = may_enter(origin, tenant).allowed and may_process(origin, tenant, target.place).allowed
        assert flow.allowed == (at_origin and refusal_of(target, stamp_of(origin, tenant)) is None)
