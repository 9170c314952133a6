"""Compares the residency policies of several regions, and reports contradictions within and between them.

It must never open a file, and it judges no request: every verdict comes from the rules that the gateways apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.regions import places_in
from gateway.core.kernel.residency import (
    ResidencyPolicy,
    Verdict,
    closed_policy,
    may_accept,
    may_enter,
    may_process,
    processing_rule,
    within,
)
from gateway.core.vocabulary import Place, PlaceRule, RegionName, TenantName
from gateway.policy.file import (
    NameKind,
    PolicyContradiction,
    contradictions_in,
    folded,
    in_words,
    names_of,
    rules_of,
    tenant_key,
)
from gateway.policy.flows import Region, one_of, others, region_of
from gateway.policy.words import by_number, places_in_words, tenants_in_words
from mesh.faults import FileFault

_NOTHING: Mapping[Path, ResidencyPolicy] = MappingProxyType({})


class Severity(StrEnum):
    INVALID = "invalid"
    CONTRADICTION = "contradiction"
    WARNING = "warning"
    NOTE = "note"


class PolicyFinding(Struct, frozen=True):
    """Finding about one policy file, for its author."""

    severity: Severity
    path: Path
    fault: FileFault


class Check(Struct, frozen=True):
    """Result of the check: one region for each place, and the findings, the gravest first."""

    regions: list[Region]
    findings: list[PolicyFinding]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def result(self) -> str:
        for severity in (Severity.INVALID, Severity.CONTRADICTION):
            if self.count(severity):
                return severity
        return "fine"

    @property
    def is_fine(self) -> bool:
        return self.result == "fine"


def check_policies(
    policies: Mapping[Path, ResidencyPolicy],
    invalid: Iterable[PolicyFinding] = (),
    narrowings: Mapping[Path, ResidencyPolicy] = _NOTHING,
) -> Check:
    """Check each file's policy alone, then all of them against each other. The returned regions have the policies that
    are left after `narrowings`, the policies of a controller.

    `invalid` are findings about further files that gave no policy.
    """
    findings = [*invalid]
    regions = _held_against_themselves(policies, findings)
    findings += findings_between(regions)
    limits = _held_against_themselves(narrowings, findings)
    findings += _narrowings_without_effect(regions, limits)
    known = _one_per_region(regions)
    shown = [_narrowed(_kept_to_table(region, known), limits) for region in known]
    return Check(shown, sorted(findings, key=_rank))


def _held_against_themselves(policies: Mapping[Path, ResidencyPolicy], findings: list[PolicyFinding]) -> list[Region]:
    """Regions of these files. Contradictions within a file are added to the findings, and its region is closed."""
    regions: list[Region] = []
    for path, policy in policies.items():
        faults = contradictions_in(policy)
        findings += [PolicyFinding(Severity.CONTRADICTION, path, fault) for fault in faults]
        regions.append(region_of(path, _closed(path, policy, faults[0]) if faults else policy))
    return regions


def _kept_to_table(region: Region, regions: list[Region]) -> Region:
    """Region with its policy limited to its table of regions, as its gateways apply it; unchanged where the table has
    all of `regions` as they are."""
    table = region.policy.regions
    if table is None or region.is_closed or not any(table.place_fault(each.place) for each in regions):
        return region
    return region_of(region.path, within(region.policy, table))


def _narrowed(region: Region, limits: list[Region]) -> Region:
    for limit in limits:
        if limit.place.region == region.place.region:
            region = region_of(region.path, narrowed(region.policy, limit.policy))
    return region


def _narrowings_without_effect(regions: list[Region], limits: list[Region]) -> Iterator[PolicyFinding]:
    places = {region.place.region: region.place for region in regions}
    for limit in limits:
        place = places.get(limit.place.region)
        if place is None:
            message = "none of the given files is for this region, so nothing is narrowed by it"
            yield PolicyFinding(Severity.WARNING, limit.path, FileFault("region", message))
        elif place != limit.place:
            message = f"is for {in_words(limit.place)}, and the region is {in_words(place)}: it closes the region"
            yield PolicyFinding(Severity.CONTRADICTION, limit.path, FileFault("jurisdiction", message))


def _closed(path: Path, policy: ResidencyPolicy, fault: FileFault) -> ResidencyPolicy:
    return closed_policy(policy.place, str(PolicyContradiction(path, [fault])))


def _one_per_region(regions: list[Region]) -> list[Region]:
    first: dict[str, Region] = {}
    for region in regions:
        first.setdefault(region.place.region, region)
    return list(first.values())


def _rank(finding: PolicyFinding) -> int:
    return list(Severity).index(finding.severity)


def findings_between(regions: list[Region]) -> list[PolicyFinding]:
    """Findings that need several files. A file that contradicts itself is left out: its region is closed until it is
    mended."""
    sound = [region for region in regions if not region.is_closed]
    known = _one_per_region(sound)
    return [
        *_stated_twice(regions),
        *_spelled_twice(sound),
        *_mistaken_kinds(sound),
        *_tables_at_odds(sound),
        *_named_and_not_in_table(sound),
        *_sent_but_not_accepted(known),
        *_unknown_names(sound, {region.place for region in regions}),
        *_denials_without_effect(known),
        *_tenants_forgotten(known),
        *_tenants_wider_than_region(known),
    ]


def _stated_twice(regions: list[Region]) -> Iterator[PolicyFinding]:
    first: dict[str, Region] = {}
    for region in regions:
        other = first.setdefault(region.place.region, region)
        if other is not region:
            message = f"{other.path} is a policy for this region too, and states it as {in_words(other.place)}"
            yield PolicyFinding(Severity.CONTRADICTION, region.path, FileFault("region", message))


def _spelled_twice(regions: list[Region]) -> Iterator[PolicyFinding]:
    first: dict[tuple[NameKind, str], tuple[str, Path]] = {}
    for region in regions:
        for kind, name, key in names_of(region.policy):
            spelling, path = first.setdefault((kind, folded(kind, name)), (name, region.path))
            if spelling != name:
                message = f"{kind} {name} is written {spelling} in {path}"
                yield PolicyFinding(Severity.CONTRADICTION, region.path, FileFault(key, message))


def _mistaken_kinds(regions: list[Region]) -> Iterator[PolicyFinding]:
    kinds = _kinds_of_places({region.place for region in regions})
    for region in regions:
        for kind, name, key in names_of(region.policy):
            known = kinds.get(name)
            if known is not None and kind is not NameKind.TENANT and kind not in known:
                message = f"{name} stands here as a {kind}, but other files know it as a {min(known)}"
                yield PolicyFinding(Severity.CONTRADICTION, region.path, FileFault(key, message))


def _kinds_of_places(places: set[Place]) -> dict[str, set[NameKind]]:
    kinds: dict[str, set[NameKind]] = {}
    for place in places:
        kinds.setdefault(place.region, set()).add(NameKind.REGION)
        kinds.setdefault(place.jurisdiction, set()).add(NameKind.JURISDICTION)
    return kinds


def _tables_at_odds(regions: list[Region]) -> Iterator[PolicyFinding]:
    """Contradictions between the tables of regions. The mesh has one table: a region whose jurisdiction differs between
    two files gets nothing from either."""
    first: dict[RegionName, tuple[Place, Path]] = {}
    for region in regions:
        table = region.policy.regions
        for place in () if table is None else places_in(table):
            known, path = first.setdefault(place.region, (place, region.path))
            if place != known:
                message = f"has {in_words(place)}, and {path} has {in_words(known)}"
                yield PolicyFinding(Severity.CONTRADICTION, region.path, FileFault(f"regions.{place.region}", message))


def _named_and_not_in_table(regions: list[Region]) -> Iterator[PolicyFinding]:
    for region in regions:
        table = region.policy.regions
        if table is None or len(table.regions) == 1:
            continue  # a file without a table gets one warning for the whole file
        for key, rule in rules_of(region.policy):
            for name in sorted(rule.regions - table.regions.keys()):
                message = f"names {name}, which is not in the table of regions, and so gets nothing"
                yield PolicyFinding(Severity.WARNING, region.path, FileFault(f"{key}.regions", message))


def _sent_but_not_accepted(regions: list[Region]) -> Iterator[PolicyFinding]:
    """Rules that send to regions which do not accept. Naming a region is a claim about it, which its refusal
    contradicts; naming a jurisdiction claims less."""
    for region in regions:
        for key, rule in _sending_rules(region):
            for target in others(region, regions):
                accepted = may_accept(target.policy, region.place)
                if rule.allows(target.place) and not accepted.allowed:
                    yield _not_accepted(region, key, rule, target, accepted)


def _not_accepted(region: Region, key: str, rule: PlaceRule, target: Region, accepted: Verdict) -> PolicyFinding:
    name = target.place.region
    if name in rule.regions:
        message = f"names {name}, which takes in nothing from here: in {target.path}, {accepted.why}"
        return PolicyFinding(Severity.CONTRADICTION, region.path, FileFault(f"{key}.regions", message))
    message = f"lets requests go to {in_words(target.place)}, which takes in nothing from here: {accepted.why}"
    return PolicyFinding(Severity.NOTE, region.path, FileFault(f"{key}.jurisdictions", message))


def _sending_rules(region: Region) -> Iterator[tuple[str, PlaceRule]]:
    """Rules for sending, one for each group of tenants with equal rules; a tenant that is refused on arrival sends
    nothing."""
    for tenants in region.groups:
        if may_enter(region.policy, one_of(tenants)).allowed:
            yield _rule_key(tenants), processing_rule(region.policy, one_of(tenants))


def _rule_key(tenants: tuple[TenantName, ...]) -> str:
    return tenant_key(tenants[0]) if tenants else "process"


def _unknown_names(regions: list[Region], places: set[Place]) -> Iterator[PolicyFinding]:
    """Names that no file is for. A name that resembles a known one is a contradiction already."""
    kinds = _kinds_of_places(places)
    resembling = {(kind, folded(kind, name)) for name, known in kinds.items() for kind in known}
    for region in regions:
        for kind, name, key in names_of(region.policy):
            if kind is NameKind.TENANT or name in kinds or (kind, folded(kind, name)) in resembling:
                continue
            if key.startswith("regions."):
                continue  # the table is of the whole mesh, and the given files need not be
            severity = Severity.WARNING if kind is NameKind.REGION else Severity.NOTE
            whose = "for region" if kind is NameKind.REGION else "for a region in jurisdiction"
            yield PolicyFinding(severity, region.path, FileFault(key, f"none of the given files is {whose} {name}"))


def _denials_without_effect(regions: list[Region]) -> Iterator[PolicyFinding]:
    places = {region.place.region: region.place for region in regions}
    for region in regions:
        inherited = region.policy.process.denied_regions
        for key, rule in rules_of(region.policy):
            denied = rule.denied_regions - inherited if key.startswith("tenants.") else rule.denied_regions
            for place in (places[name] for name in sorted(denied & places.keys())):
                if place.jurisdiction not in rule.jurisdictions:
                    message = f"denies {in_words(place)}, which nothing beside it would allow"
                    yield PolicyFinding(Severity.NOTE, region.path, FileFault(f"{key}.denied_regions", message))


def _tenants_forgotten(regions: list[Region]) -> Iterator[PolicyFinding]:
    every_tenant = dict.fromkeys(name for region in regions for name in region.policy.tenants)
    for region in regions:
        missing = [name for name in every_tenant if name not in region.policy.tenants]
        if missing:
            have = by_number(missing, "has a rule", "have rules")
            message = (
                f"{tenants_in_words(missing)} {have} in other files and none here, where the region's `process` applies"
            )
            yield PolicyFinding(Severity.WARNING, region.path, FileFault("tenants", message))


def _tenants_wider_than_region(regions: list[Region]) -> Iterator[PolicyFinding]:
    for region in regions:
        for tenants in region.groups:
            if not tenants or not may_enter(region.policy, tenants[0]).allowed:
                continue
            places = [other.place for other in others(region, regions)]
            wider = [place for place in places if _is_wider(region.policy, tenants[0], place)]
            if wider:
                who, where = tenants_in_words(tenants), places_in_words(wider)
                message = f"{who} may go to {where}, where the region's own `process` does not"
                yield PolicyFinding(Severity.NOTE, region.path, FileFault(tenant_key(tenants[0]), message))


def _is_wider(policy: ResidencyPolicy, tenant: TenantName, place: Place) -> bool:
    return may_process(policy, tenant, place).allowed and not policy.process.allows(place)
