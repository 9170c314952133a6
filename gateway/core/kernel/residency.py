"""Residency check: whether a request may be processed at a place. Each region has one directional policy, enforced at
the origin and again at the receiver.

`gateway.policy.file` parses policy files; an unusable policy becomes `closed_policy`, under which nothing leaves the
region and nothing is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.core.kernel.regions import RegionTable
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
"""Only text that a peer may see: `closed_reason` names files and possibly tenants, and stays in the region."""


class TenantPolicy(Struct, frozen=True):
    """Rule that replaces the region's rule for one tenant."""

    process: PlaceRule


class LoggingRule(Struct, frozen=True):
    """Request details that may appear in logs and audit records. Content is never logged."""

    tenant: bool = True
    client_address: bool = False
    session_key: bool = False


class ResidencyPolicy(Struct, frozen=True):
    """One region's policy: where its traffic may be processed, and which regions' traffic it accepts."""

    place: Place
    process: PlaceRule
    accept: PlaceRule
    tenants: dict[TenantName, TenantPolicy] = field(default_factory=dict)
    logging: LoggingRule = field(default_factory=LoggingRule)
    digest: str = ""
    closed_reason: str = ""
    """Reason why the policy could not be used; non-empty only for the substitute of an unusable policy."""
    narrowed_by: str = ""
    """Digest of the policy that narrowed this one; empty if only the region's own policy applies."""
    regions: RegionTable | None = None
    """Operators' table that the rules above are already narrowed to (see `within`); None if no file was read, as for
    policies sent between gateway and controller."""


class Verdict(Struct, frozen=True):
    """Yes or no, with its reason in words."""

    allowed: bool
    why: str


def closed_policy(place: Place, reason: str) -> ResidencyPolicy:
    """Policy of a region without a usable one: its traffic stays in the region, other regions' traffic is refused, and
    logs show as little as a policy can demand."""
    assert reason, "a closed policy says why"
    logging = LoggingRule(tenant=False, client_address=False, session_key=False)
    return ResidencyPolicy(
        place, process=_at_home(place), accept=PlaceRule(), logging=logging, digest="closed", closed_reason=reason
    )


def within(policy: ResidencyPolicy, table: RegionTable) -> ResidencyPolicy:
    """Policy with every rule narrowed to the places of the table: a region or jurisdiction that a rule names is allowed
    only where the table has that region in that jurisdiction."""
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
    """Places where this tenant's requests may be processed: the tenant's own rule if there is one, else the region's.
    In a closed region a known tenant rule can only narrow the home rule."""
    own = policy.tenants.get(tenant)
    if own is None:
        return policy.process
    return both(_at_home(policy.place), own.process) if policy.closed_reason else own.process


def both(rule: PlaceRule, other: PlaceRule) -> PlaceRule:
    """Rule that allows exactly what both rules allow, wherever a region may lie. Rules with the same content are
    equal."""
    regions, jurisdictions = rule.regions & other.regions, rule.jurisdictions & other.jurisdictions
    denied = rule.denied_regions | other.denied_regions
    mixed = (*_mixed(rule, other), *_mixed(other, rule), *_common(rule.regions_within, other.regions_within))
    return PlaceRule(jurisdictions, regions, denied, _tidied(mixed, regions | denied, jurisdictions))


def _mixed(rule: PlaceRule, other: PlaceRule) -> Iterator[RegionsWithin]:
    """Parts that one rule names by region or as regions within, and the other as a whole."""
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
    """Sorted parts, without those that the rest of the rule already decides or another part contains."""
    left = {RegionsWithin(each.regions - decided, each.jurisdictions - jurisdictions): None for each in mixed}
    said = [each for each in left if each.regions and each.jurisdictions]
    kept = [each for each in said if not any(_is_within(each, other) for other in said if other is not each)]
    return tuple(sorted(kept, key=lambda each: (sorted(each.regions), sorted(each.jurisdictions))))


def _is_within(one: RegionsWithin, other: RegionsWithin) -> bool:
    return one.regions <= other.regions and one.jurisdictions <= other.jurisdictions


def may_enter(policy: ResidencyPolicy, tenant: TenantName, narrower: PlaceRule | None = None) -> Verdict:
    """Decide whether the ingress region itself may see this tenant's plaintext, also under the client key's own
    rule."""
    return may_process(policy, tenant, policy.place, narrower)


def may_process(
    policy: ResidencyPolicy, tenant: TenantName, place: Place, narrower: PlaceRule | None = None
) -> Verdict:
    """Decide whether this tenant's requests that arrive in the policy's region may be processed at `place`, also under
    the client key's own rule."""
    rule = processing_rule(policy, tenant)
    allowed = rule.allows(place)
    if policy.closed_reason and not allowed:
        return Verdict(False, _CLOSED)
    if allowed and narrower is not None and not narrower.allows(place):
        return Verdict(False, f"the key's own rule: {_explain(narrower, place, 'process')}")
    return _verdict(policy, "process", rule, place)


def may_hold_records(policy: ResidencyPolicy, place: Place) -> Verdict:
    """Decide whether records of requests of all tenants together, such as the lengths of their answers, may be at
    `place`: the region's rule and each tenant's own have to let requests be processed there."""
    if place == policy.place:
        return Verdict(True, "it is the same region")
    if policy.closed_reason:
        return Verdict(False, _CLOSED)
    rules = [policy.process, *(each.process for each in policy.tenants.values())]
    strictest = next((each for each in rules if not each.allows(place)), policy.process)
    return _verdict(policy, "process", strictest, place)


def may_process_under(stamp: ResidencyStamp, place: Place) -> Verdict:
    """Decide whether a request with this stamp may be processed at `place`."""
    return Verdict(stamp.rule.allows(place), f"its stamp: {_explain(stamp.rule, place, 'process')}")


def may_accept(policy: ResidencyPolicy, origin: Place) -> Verdict:
    """Decide whether the policy's region accepts traffic that arrived at `origin`. Traffic of its own region (a sibling
    gateway's request) is always accepted, unless the policy is closed."""
    if policy.closed_reason:
        return Verdict(False, _CLOSED)
    if origin == policy.place:
        return Verdict(True, "it is the same region")
    return _verdict(policy, "accept", policy.accept, origin)


def accepted_origins(policy: ResidencyPolicy) -> PlaceRule:
    """Origins that `may_accept` allows, as a rule to send to gateways that take over the region's replicas. If the
    policy denies its own region, the denial holds."""
    if policy.closed_reason:
        return PlaceRule()
    own = RegionsWithin(frozenset({policy.place.region}), frozenset({policy.place.jurisdiction}))
    return replace(policy.accept, regions_within=(*policy.accept.regions_within, own))


def refusal_of(policy: ResidencyPolicy, stamp: ResidencyStamp) -> tuple[RefusalReason, str] | None:
    """Check a forward against the receiver's policy and the origin's stamp. Return the refusal, or None when it may
    enter."""
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
    """Name of the policy key, with a note if a refusal may come from the controller's narrowing rather than from the
    region's own file."""
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
