"""Finds placement policies that other packages provide under the entry point group `nightside.placement`.

It loads only the policy that a config names, checks that policy's options, and must never substitute another policy for
one that it cannot find.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from gateway.config.plug_ins import PlugInUnusable, load_plug_in
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.placement.catalogue import BUILT_IN
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Policy
from gateway.features.sections import POLICIES

GROUP = "nightside.placement"


class PlugIn(Struct, frozen=True):
    """Installed policy, with the version of the package that provides it."""

    policy: type[Policy]
    version: str


def policy_by_name(name: str) -> type[Policy] | None:
    """Placement policy that comes with the gateway; None if it has none of that name."""
    return BUILT_IN.get(name) or POLICIES.get(name)


def find_policy(name: str) -> type[Policy]:
    """Return the policy for a core. The config has been checked before, so the policy is installed."""
    return find_plug_in(name).policy


@cache
def find_plug_in(name: str) -> PlugIn:
    """Import the policy, once per process. Raises PlugInUnusable."""
    found = load_plug_in(GROUP, name, PlacementPolicy)
    if fault := policy_fault(found.brought):
        raise found.unusable(fault)
    assert isinstance(found.brought, type)
    return PlugIn(found.brought, found.version)


def placement_faults(config: PlacementConfig) -> Iterator[tuple[str, str]]:
    """Faults of a `placement` section, as (key, message)."""
    if config.policy in list(PlacementPolicy):
        if policy_by_name(config.policy) is None:
            yield "policy", f"{config.policy} comes with a feature that this gateway was built without"
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
    """Return the config with the policy's installed version, as a core and a journal take it. The config must have no
    faults."""
    if config.policy in list(PlacementPolicy):
        return config
    return replace(config, policy_version=find_plug_in(config.policy).version)


def policy_fault(found: object) -> str:
    """Reason why an object is no policy; empty if it is one. Checked here since a compiled base class lets a subclass
    leave out its abstract methods."""
    if not isinstance(found, type) or not issubclass(found, Policy):
        return "is no gateway.core.placement.policy.Policy"
    base, questions = (
        (Layered, ("choose_replica", "choose_peer")) if issubclass(found, Layered) else (Policy, ("weigh",))
    )
    for question in questions:
        if getattr(found, question) is getattr(base, question):
            return f"does not say how to {question}"
    return ""
