"""Finds placement policies that other packages bring, under the entry point group `nightside.placement`.

It loads only what a config names, judges what the config says of it, and must never stand in for what it cannot find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from gateway.config.plug_ins import PlugInUnusable, load_plug_in
from gateway.core.config import PlacementConfig, PlacementPolicy
from gateway.core.placement.policy import Policy

GROUP = "nightside.placement"


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
    found = load_plug_in(GROUP, name, PlacementPolicy)
    if fault := policy_fault(found.brought):
        raise found.unusable(fault)
    assert isinstance(found.brought, type)
    return PlugIn(found.brought, found.version)


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


def policy_fault(found: object) -> str:
    """Why it is no policy, or nothing. Asked here since a compiled base lets one be made that answers nothing."""
    if not isinstance(found, type) or not issubclass(found, Policy):
        return "is no gateway.core.placement.policy.Policy"
    for question in ("choose_replica", "choose_peer"):
        if getattr(found, question) is getattr(Policy, question):
            return f"does not say how to {question}"
    return ""
