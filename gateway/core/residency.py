"""May this request be processed there? One policy per region, directional, asked at the origin and again at the
receiver.

Parsing policy files is the edge's work (`gateway.policy.file`); a policy that cannot be used becomes `closed_policy`,
under which nothing leaves the region and nothing is taken in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gateway.core.regions import RegionTable
from gateway.core.value import value
from gateway.core.vocabulary import (
    Jurisdiction,
    Place,
    PlaceRule,
    RefusalReason,
    RegionName,
    RegionsWithin,
    ResidencyStamp,
    TenantName,
)

_CLOSED = "closed: this region has no usable policy"
"""All that a peer may learn: `closed_reason` names files and perhaps tenants, and stays at home."""


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What replaces the region's rule for one tenant."""

    process: PlaceRule


@dataclass(frozen=True, slots=True)
class LoggingRule:
    """Which details of a request may appear in logs and audit records. Content never may."""

    tenant: bool = True
    client_address: bool = False
    session_key: bool = False


@dataclass(frozen=True, slots=True)
class ResidencyPolicy:
    """One region's policy: where its traffic may be processed, and whose traffic it accepts."""

    place: Place
    process: PlaceRule
    accept: PlaceRule
    tenants: dict[TenantName, TenantPolicy] = field(default_factory=dict)
    logging: LoggingRule = field(default_factory=LoggingRule)
    digest: str = ""
    closed_reason: str = ""
    """Non-empty when this stands in for a policy that could not be used; it says why."""
    narrowed_by: str = ""
    """Digest of the policy that narrowed this one; empty where the region's own stands alone."""
    regions: RegionTable | None = None
    """The operators' table, to which the rules above keep already (see `within`); None where nothing was read from a
    file, as in what travels between gateway and controller."""


@value
class Verdict:
    """An answer with its reason, in words."""

    allowed: bool
    why: str


def closed_policy(place: Place, reason: str) -> ResidencyPolicy:
    """The policy of a region without a usable one: its traffic stays in the region, nobody else's is accepted, and
    logs show as little as a policy could ask for."""
    assert reason, "a closed policy says why"
    logging = LoggingRule(tenant=False, client_address=False, session_key=False)
    return ResidencyPolicy(
        place, process=_at_home(place), accept=PlaceRule(), logging=logging, digest="closed", closed_reason=reason
    )


def within(policy: ResidencyPolicy, table: RegionTable) -> ResidencyPolicy:
    """The policy with every rule kept to the places of the table: what any rule names by jurisdiction, or by region, is
    allowed only where the table has that region in that jurisdiction."""
    known = table.rule()
    return replace(
        policy,
        process=both(policy.process, known),
        accept=both(policy.accept, known),
        tenants={name: TenantPolicy(both(each.process, known)) for name, each in policy.tenants.items()},
        regions=table,
    )


def _at_home(place: Place) -> PlaceRule:
    return PlaceRule(regions=frozenset({place.region}))


def processing_rule(policy: ResidencyPolicy, tenant: TenantName) -> PlaceRule:
    """Where this tenant's requests may be processed: the tenant's own rule if there is one, else the region's. Where
    the region is closed, a tenant's rule that is known all the same can only take away from that."""
    own = policy.tenants.get(tenant)
    if own is None:
        return policy.process
    return both(_at_home(policy.place), own.process) if policy.closed_reason else own.process


def both(rule: PlaceRule, other: PlaceRule) -> PlaceRule:
    """Exactly what both rules allow, wherever a region may lie. Two of one content give equal rules."""
    regions, jurisdictions = rule.regions & other.regions, rule.jurisdictions & other.jurisdictions
    denied = rule.denied_regions | other.denied_regions
    mixed = (*_mixed(rule, other), *_mixed(other, rule), *_common(rule.regions_within, other.regions_within))
    return PlaceRule(jurisdictions, regions, denied, _tidied(mixed, regions | denied, jurisdictions))


def _mixed(rule: PlaceRule, other: PlaceRule) -> Iterator[RegionsWithin]:
    """What one rule names by region or as regions within, and the other as a whole."""
    yield RegionsWithin(rule.regions, other.jurisdictions)
    for each in rule.regions_within:
        yield RegionsWithin(each.regions & other.regions, each.jurisdictions)
        yield RegionsWithin(each.regions, each.jurisdictions & other.jurisdictions)


def _common(some: tuple[RegionsWithin, ...], others: tuple[RegionsWithin, ...]) -> Iterator[RegionsWithin]:
    for one in some:
        for other in others:
            yield RegionsWithin(one.regions & other.regions, one.jurisdictions & other.jurisdictions)


def _tidied(
    mixed: Iterable[RegionsWithin], decided: frozenset[RegionName], jurisdictions: frozenset[Jurisdiction]
) -> tuple[RegionsWithin, ...]:
    """Without what the rest of the rule decides anyway or another of them says, and in one order."""
    left = {RegionsWithin(each.regions - decided, each.jurisdictions - jurisdictions): None for each in mixed}
    said = [each for each in left if each.regions and each.jurisdictions]
    kept = [each for each in said if not any(_is_within(each, other) for other in said if other is not each)]
    return tuple(sorted(kept, key=lambda each: (sorted(each.regions), sorted(each.jurisdictions))))


def _is_within(one: RegionsWithin, other: RegionsWithin) -> bool:
    return one.regions <= other.regions and one.jurisdictions <= other.jurisdictions


def may_enter(policy: ResidencyPolicy, tenant: TenantName, narrower: PlaceRule | None = None) -> Verdict:
    """May the ingress region itself see this tenant's plaintext, also under what the client's key adds?"""
    return may_process(policy, tenant, policy.place, narrower)


def may_process(
    policy: ResidencyPolicy, tenant: TenantName, place: Place, narrower: PlaceRule | None = None
) -> Verdict:
    """May this tenant's requests, arriving in the policy's region, be processed at `place`, also under what the
    client's key adds?"""
    rule = processing_rule(policy, tenant)
    allowed = rule.allows(place)
    if policy.closed_reason and not allowed:
        return Verdict(False, _CLOSED)
    if allowed and narrower is not None and not narrower.allows(place):
        return Verdict(False, f"the key's own rule: {_explain(narrower, place, 'process')}")
    return _verdict(policy, "process", rule, place)


def may_process_under(stamp: ResidencyStamp, place: Place) -> Verdict:
    """May what came with this stamp be processed at `place`?"""
    return Verdict(stamp.rule.allows(place), f"its stamp: {_explain(stamp.rule, place, 'process')}")


def may_accept(policy: ResidencyPolicy, origin: Place) -> Verdict:
    """Does the policy's region take in traffic that arrived at `origin`? Its own always, unless it is closed: a
    sibling gateway's request stays where it already is."""
    if policy.closed_reason:
        return Verdict(False, _CLOSED)
    if origin == policy.place:
        return Verdict(True, "it is the same region")
    return _verdict(policy, "accept", policy.accept, origin)


def accepted_origins(policy: ResidencyPolicy) -> PlaceRule:
    """The origins that `may_accept` lets in, as a rule that can be sent to whoever takes over the region's replicas. A
    policy that denies its own region is taken at its word."""
    if policy.closed_reason:
        return PlaceRule()
    own = RegionsWithin(frozenset({policy.place.region}), frozenset({policy.place.jurisdiction}))
    return replace(policy.accept, regions_within=(*policy.accept.regions_within, own))


def refusal_of(policy: ResidencyPolicy, stamp: ResidencyStamp) -> tuple[RefusalReason, str] | None:
    """The receiver's check of a forward against its own policy and the origin's stamp; None when it may come in."""
    accepted = may_accept(policy, stamp.origin)
    if not accepted.allowed:
        return RefusalReason.RESIDENCY_NOT_ACCEPTED, accepted.why
    if not stamp.rule.allows(policy.place):
        return RefusalReason.RESIDENCY_STAMP, _explain(stamp.rule, policy.place, "process")
    return None


def _verdict(policy: ResidencyPolicy, key: str, rule: PlaceRule, place: Place) -> Verdict:
    allowed = rule.allows(place)
    if not allowed and policy.regions is not None and (fault := policy.regions.place_fault(place)):
        return Verdict(False, fault)
    return Verdict(allowed, _explain(rule, place, _named(key, policy, allowed)))


def _named(key: str, policy: ResidencyPolicy, allowed: bool) -> str:
    """Whoever looks for the reason of a no in the region's own file may have to look further."""
    return f"{key}, as the controller narrows it," if policy.narrowed_by and not allowed else key


def _explain(rule: PlaceRule, place: Place, key: str) -> str:
    if place.region in rule.denied_regions:
        return f"{key} denies region {place.region}"
    if place.region in rule.regions:
        return f"{key} names region {place.region}"
    if place.jurisdiction in rule.jurisdictions:
        return f"{key} names jurisdiction {place.jurisdiction}"
    if rule.allows(place):
        return f"{key} names region {place.region} within jurisdiction {place.jurisdiction}"
    return f"{key} names neither region {place.region} nor jurisdiction {place.jurisdiction}"
