"""Finds placement policies that other packages bring, under the entry point group `nightside.placement`.

It loads only what a config names, judges what the config says of it, and must never stand in for what it cannot find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from gateway.core.config import PlacementConfig, PlacementPolicy
from gateway.core.placement.policy import Policy

GROUP = "nightside.placement"


class PlugInUnusable(Exception):
    """There is no policy of that name here, or what there is is none. In words."""


@dataclass(frozen=True, slots=True)
class PlugIn:
    """A policy as installed; the version is that of the package that brings it."""

    policy: type[Policy]
    version: str


def find_policy(name: str) -> type[Policy]:
    """What a core is handed: a config that got there has been looked through, so the policy is there."""
    return find_plug_in(name).policy


@cache
def find_plug_in(name: str) -> PlugIn:
    """Import the policy, once in the life of the process. Raises PlugInUnusable."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise PlugInUnusable(f"{name!r} is none of {', '.join(_names())}")
    if len(found) > 1:
        raise PlugInUnusable(f"{name!r} is brought by {' and '.join(map(_package_of, found))}")
    (entry_point,) = found
    policy = _load(entry_point)
    return PlugIn(policy, entry_point.dist.version if entry_point.dist else "unknown")


def placement_faults(config: PlacementConfig) -> Iterator[tuple[str, str]]:
    """What stands against a section `placement`: the key, and what is wrong with it."""
    if config.policy in list(PlacementPolicy):
        if config.policy_version is not None:
            yield "policy_version", f"{config.policy} comes with the gateway, and with no version of its own"
        if config.policy_options:
            yield "policy_options", f"{config.policy} has none; its settings are keys of their own"
        return
    try:
        plug_in = find_plug_in(config.policy)
    except PlugInUnusable as error:
        yield "policy", str(error)
        return
    if config.policy_version not in (None, plug_in.version):
        yield "policy_version", f"of {config.policy}, {plug_in.version} is installed and not {config.policy_version}"
    try:
        plug_in.policy.check_options(config.policy_options)
    except ValueError as error:
        yield "policy_options", str(error)


def with_version(config: PlacementConfig) -> PlacementConfig:
    """As a core is told it, and a journal keeps it: naming the version that decides. Call it on what has no faults."""
    if config.policy in list(PlacementPolicy):
        return config
    return replace(config, policy_version=find_plug_in(config.policy).version)


def _names() -> list[str]:
    return [*PlacementPolicy, *sorted({each.name for each in entry_points(group=GROUP)})]


def _load(entry_point: EntryPoint) -> type[Policy]:
    try:
        found = entry_point.load()
    except Exception as error:  # whatever a stranger's module raises
        raise PlugInUnusable(
            f"{entry_point.name!r} cannot be loaded from {_package_of(entry_point)}: {type(error).__name__}: {error}"
        ) from error
    if fault := policy_fault(found):
        raise PlugInUnusable(f"{entry_point.name!r} of {_package_of(entry_point)} {fault}")
    assert isinstance(found, type)
    return found


def policy_fault(found: object) -> str:
    """Why it is no policy, or nothing. Asked here since a compiled base lets one be made that answers nothing."""
    if not isinstance(found, type) or not issubclass(found, Policy):
        return "is no gateway.core.placement.policy.Policy"
    for question in ("choose_replica", "choose_peer"):
        if getattr(found, question) is getattr(Policy, question):
            return f"does not say how to {question}"
    return ""


def _package_of(entry_point: EntryPoint) -> str:
    return f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else entry_point.value
