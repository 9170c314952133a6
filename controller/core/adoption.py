"""Adopters of a home gateway's replicas: the nearest living gateways that residency allows (SkyWalker §4.2) and that
can serve them.

The functions answer for one unit at a time and keep no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from controller.core.geography import Geography
from controller.core.vocabulary import GatewayEntry
from gateway.core.kernel.residency import ResidencyPolicy, may_accept
from gateway.core.vocabulary import GatewayId

_TOLD_MAX = 4
"""Most gateways that a reason lists."""
_REASON_LENGTH_MAX = 160
"""Most characters of one gateway's reason among those of several."""


class Adopters(Struct, frozen=True):
    """Gateways that may take over a home's replicas, all equally near; where there is none, `why` says the reason."""

    gateways: tuple[GatewayId, ...]
    why: str = ""


class Requirements(Struct, frozen=True):
    """Requirements of the adopter of some replicas."""

    home: GatewayId
    needs: frozenset[str] = frozenset()
    """Abilities that the adopter needs."""
    refusals: tuple[tuple[GatewayId, str], ...] = ()
    """Gateways that left these replicas out, with reasons."""

    def is_refused_by(self, gateway_id: GatewayId) -> bool:
        """True if the gateway left the replicas out of what it was given. A home never does."""
        return gateway_id != self.home and any(each == gateway_id for each, _ in self.refusals)


def adopters_of(
    home: GatewayEntry,
    living: Iterable[GatewayEntry],
    policy: ResidencyPolicy | None,
    geography: Geography,
    required: Requirements | None = None,
) -> Adopters:
    """Return the nearest gateways among `living` that may adopt the replicas of `home` and can serve them.

    `policy` is the policy of the home's region as last reported and as the controller narrows it. Requests of an
    adopter's clients run as guests of that region, so its policy has to accept traffic that arrives at the adopter's
    place. Gateways equally near share the replicas.
    """
    others = [each for each in living if each.gateway_id != home.gateway_id]
    if not others:
        return Adopters((), "no other gateway lives")
    if policy is None:
        return Adopters((), f"the policy of {home.place.region} is not known")
    allowed = [each for each in others if may_accept(policy, each.place).allowed]
    if not allowed:
        return Adopters((), f"the policy of {home.place.region} accepts none of {_names(others)}{_because(policy)}")
    unable = {} if required is None else _unable(allowed, required)
    able = [each for each in allowed if each.gateway_id not in unable]
    if not able:
        told = [f"{gateway_id} {why[:_REASON_LENGTH_MAX]}" for gateway_id, why in sorted(unable.items())]
        return Adopters((), f"no gateway that may have it can serve it: {_few(told, '; ')}")
    distances = {each.gateway_id: geography.distance_ns(home, each) for each in able}
    nearest_ns = min(distances.values())
    return Adopters(tuple(sorted(each for each, distance in distances.items() if distance == nearest_ns)))


def least_burdened(adopters: Iterable[GatewayId], replicas: Mapping[GatewayId, int]) -> GatewayId:
    """Return the adopter that serves the fewest replicas; ties go to the first by name."""
    return min(adopters, key=lambda each: (replicas.get(each, 0), each))


def _unable(gateways: Iterable[GatewayEntry], required: Requirements) -> dict[GatewayId, str]:
    """Reasons, by gateway, why it cannot serve the replicas."""
    refusals = dict(required.refusals)
    unable: dict[GatewayId, str] = {}
    for each in gateways:
        lacking = sorted(required.needs - each.abilities)
        if lacking:
            unable[each.gateway_id] = f"lacks {', '.join(lacking)}"
        elif each.gateway_id in refusals:
            unable[each.gateway_id] = f"left it out ({refusals[each.gateway_id]})"
    return unable


def _because(policy: ResidencyPolicy) -> str:
    if policy.closed_reason:
        return f" (closed: {policy.closed_reason})"
    return " (as the controller narrows it)" if policy.narrowed_by else ""


def _names(gateways: Iterable[GatewayEntry]) -> str:
    return _few(sorted(each.gateway_id for each in gateways), ", ")


def _few(told: Sequence[str], between: str) -> str:
    """Text that lists the first few, and counts the others."""
    more = len(told) - _TOLD_MAX
    return between.join([*told[:_TOLD_MAX], f"and {more} more"] if more > 0 else told)
