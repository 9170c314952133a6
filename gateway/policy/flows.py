"""Who may send requests to whom: the policies of several regions, each asked as its gateways ask it.

It must never decide by itself: every verdict comes from the residency rules in the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway.core.residency import ResidencyPolicy, Verdict, may_accept, may_enter, may_process, processing_rule
from gateway.core.vocabulary import Place, PlaceRule, TenantName

EVERYONE_ELSE = TenantName("")
"""Stands for each tenant without a rule of its own; no tenant's name is empty."""


@dataclass(frozen=True, slots=True)
class Region:
    """One region and the policy its gateways would apply: the file's, or the closed one if the file is at odds."""

    path: Path
    policy: ResidencyPolicy
    groups: list[tuple[TenantName, ...]]
    """Tenants who are treated alike, together; first, as an empty group, everyone without a rule."""

    @property
    def place(self) -> Place:
        return self.policy.place

    @property
    def is_closed(self) -> bool:
        return bool(self.policy.closed_reason)


@dataclass(frozen=True, slots=True)
class Flow:
    """May these tenants' requests go from one region to another? Both ends are asked."""

    origin: Place
    target: Place
    tenants: tuple[TenantName, ...]
    """Empty: every tenant without a rule of its own."""
    process: Verdict
    accept: Verdict

    @property
    def allowed(self) -> bool:
        return self.process.allowed and self.accept.allowed


def region_of(path: Path, policy: ResidencyPolicy) -> Region:
    """The region of this policy, its tenants grouped; a policy at odds with itself is closed by the caller first."""
    return Region(path, policy, _groups(policy))


def _groups(policy: ResidencyPolicy) -> list[tuple[TenantName, ...]]:
    groups: dict[PlaceRule | None, list[TenantName]] = {}
    for name in policy.tenants:
        rule = processing_rule(policy, name) if may_enter(policy, name).allowed else None
        groups.setdefault(rule, []).append(name)
    return [(), *map(tuple, groups.values())]


def flows_between(regions: list[Region]) -> list[Flow]:
    return [
        flow_between(region, target, tenants)
        for region in regions
        for tenants in region.groups
        for target in others(region, regions)
    ]


def flow_between(region: Region, target: Region, tenants: tuple[TenantName, ...]) -> Flow:
    tenant = one_of(tenants)
    if may_enter(region.policy, tenant).allowed:
        process = may_process(region.policy, tenant, target.place)
    else:
        process = Verdict(False, "requests are refused on arrival")
    return Flow(region.place, target.place, tenants, process, may_accept(target.policy, region.place))


def others(region: Region, regions: list[Region]) -> list[Region]:
    """The regions whose requests come from elsewhere and may be sent elsewhere: all but this one."""
    return [other for other in regions if other.place.region != region.place.region]


def one_of(tenants: tuple[TenantName, ...]) -> TenantName:
    """Whoever of a group may be asked about, since all of it are treated alike."""
    return tenants[0] if tenants else EVERYONE_ELSE
