"""Flows of requests between regions, by the policies of several regions, each evaluated as its gateways evaluate it.

It must never decide by itself: every verdict comes from the residency rules in the core.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.core.kernel.residency import ResidencyPolicy, Verdict, may_accept, may_enter, may_process, processing_rule
from gateway.core.vocabulary import Place, PlaceRule, TenantName

EVERYONE_ELSE = TenantName("")
"""Name that stands for all tenants without a rule of their own; no tenant's name is empty."""


class Region(Struct, frozen=True):
    """Region and the policy that its gateways would apply: the file's, or the closed one if the file contradicts
    itself."""

    path: Path
    policy: ResidencyPolicy
    groups: list[tuple[TenantName, ...]]
    """Tenants grouped by equal rules; the first group is empty and stands for all tenants without a rule."""

    @property
    def place(self) -> Place:
        return self.policy.place

    @property
    def is_closed(self) -> bool:
        return bool(self.policy.closed_reason)


class RegionFlow(Struct, frozen=True):
    """Verdicts of both regions on whether requests of these tenants may go from one to the other."""

    origin: Place
    target: Place
    tenants: tuple[TenantName, ...]
    """Tenants with equal rules; empty for all tenants without a rule of their own."""
    process: Verdict
    accept: Verdict

    @property
    def allowed(self) -> bool:
        return self.process.allowed and self.accept.allowed


def region_of(path: Path, policy: ResidencyPolicy) -> Region:
    """Region of this policy, its tenants grouped. The caller first closes a policy that contradicts itself."""
    return Region(path, policy, _groups(policy))


def _groups(policy: ResidencyPolicy) -> list[tuple[TenantName, ...]]:
    groups: dict[PlaceRule | None, list[TenantName]] = {}
    for name in policy.tenants:
        rule = processing_rule(policy, name) if may_enter(policy, name).allowed else None
        groups.setdefault(rule, []).append(name)
    return [(), *map(tuple, groups.values())]


def flows_between(regions: list[Region]) -> list[RegionFlow]:
    return [
        flow_between(region, target, tenants)
        for region in regions
        for tenants in region.groups
        for target in others(region, regions)
    ]


def flow_between(region: Region, target: Region, tenants: tuple[TenantName, ...]) -> RegionFlow:
    tenant = one_of(tenants)
    if may_enter(region.policy, tenant).allowed:
        process = may_process(region.policy, tenant, target.place)
    else:
        process = Verdict(False, "requests are refused on arrival")
    return RegionFlow(region.place, target.place, tenants, process, may_accept(target.policy, region.place))


def others(region: Region, regions: list[Region]) -> list[Region]:
    """Regions other than this one."""
    return [other for other in regions if other.place.region != region.place.region]


def one_of(tenants: tuple[TenantName, ...]) -> TenantName:
    """Tenant that stands for its group, all of which have equal rules."""
    return tenants[0] if tenants else EVERYONE_ELSE
