"""Who takes over what a gateway had: the nearest one that lives and that residency allows (SkyWalker §4.2).

It answers for one home at a time and remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.core.geography import Geography
from controller.core.vocabulary import GatewayEntry
from gateway.core.residency import ResidencyPolicy, may_accept
from gateway.core.value import value
from gateway.core.vocabulary import GatewayId


@value
class Adopters:
    """Who may have a home's replicas, the nearest first; with nobody, `why`."""

    gateways: tuple[GatewayId, ...]
    why: str = ""


def adopters_of(
    home: GatewayEntry,
    living: Iterable[GatewayEntry],
    policy: ResidencyPolicy | None,
    geography: Geography,
) -> Adopters:
    """`policy` is what the home's region lives by, as far as was last heard, and as we narrow it: an adopter's clients
    are that region's guests, so it has to accept traffic that arrives where the adopter stands. Gateways equally near
    share what there is."""
    others = [each for each in living if each.gateway_id != home.gateway_id]
    if not others:
        return Adopters((), "no other gateway lives")
    if policy is None:
        return Adopters((), f"the policy of {home.place.region} is not known")
    allowed = [each for each in others if may_accept(policy, each.place).allowed]
    if not allowed:
        return Adopters((), f"the policy of {home.place.region} accepts none of {_names(others)}{_because(policy)}")
    distances = {each.gateway_id: geography.distance_ns(home, each) for each in allowed}
    nearest_ns = min(distances.values())
    return Adopters(tuple(sorted(each for each, distance in distances.items() if distance == nearest_ns)))


def least_burdened(adopters: Iterable[GatewayId], replicas: Mapping[GatewayId, int]) -> GatewayId:
    """Of gateways equally near, whoever has fewest replicas; then by name."""
    return min(adopters, key=lambda each: (replicas.get(each, 0), each))


def _because(policy: ResidencyPolicy) -> str:
    if policy.closed_reason:
        return f" (closed: {policy.closed_reason})"
    return " (as the controller narrows it)" if policy.narrowed_by else ""


def _names(gateways: Iterable[GatewayEntry]) -> str:
    return ", ".join(sorted(each.gateway_id for each in gateways))
