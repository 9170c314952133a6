"""Readiness of this gateway, as load balancers and DNS ask for it at `/ready`. The module reads the core and changes
nothing.

Engines do not affect readiness by default: requests are queued, forwarded, or refused with the reason. With
`readiness.unserved_max`, a gateway that could serve no request for that long is not ready, but only while another
gateway has room: the last one is never withdrawn, lest an outage of engines become an outage of the whole mesh.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.kernel.config import OverflowMode
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import Standing

_AWAY = frozenset({Standing.LOST, Standing.STALE, Standing.NOT_ACCEPTING})
_SECOND_NS = 1_000_000_000


class Readiness:
    """Readiness by engines. It is sampled often, so that a briefly busy peer or a restarting engine makes no
    difference."""

    def __init__(self, core: GatewayState, unserved_max_ns: int | None, now_ns: int) -> None:
        self._core = core
        self._unserved_max_ns = unserved_max_ns
        self._served_ns = now_ns
        """Time when a request could last have been served, here or by an allowed peer."""
        self._offered_ns: int | None = None
        """Time when another gateway last had room, allowed or not."""

    def look(self, now_ns: int) -> None:
        """Sample the core; to be called often. O(peers)."""
        if self._unserved_max_ns is None:
            return
        offering = list(peers_with_room(self._core))
        if offering:
            self._offered_ns = now_ns
        if self._core.replicas.any_answers() or any(may_be_used(self._core, peer) for peer in offering):
            self._served_ns = now_ns

    def why_not(self, now_ns: int) -> str:
        """Reason for not being ready; empty while engines do not prevent it."""
        if self._unserved_max_ns is None or now_ns - self._served_ns <= self._unserved_max_ns:
            return ""
        if self._offered_ns is None or now_ns - self._offered_ns > self._unserved_max_ns:
            return ""
        if not any(peer.standing not in _AWAY for peer in self._core.peers):
            return ""
        seconds = (now_ns - self._served_ns) / _SECOND_NS
        return f"no engine here or at an allowed peer could serve a request for {seconds:.0f} s"


def engines_note(core: GatewayState) -> str:
    """Warning about engines while the gateway is ready; empty while one answers, or has not been probed yet."""
    is_any_up = core.replicas.any_answers()
    if not len(core.replicas) or is_any_up or any(state.sampled_ns is None for state in core.replicas):
        return ""
    if core.replicas.reachable:
        return f"of {len(core.replicas)}, those that are up cannot serve a request alone"
    return f"none of {len(core.replicas)} is up"


def peers_with_room(core: GatewayState) -> Iterable[PeerState]:
    """Peers that are alive, accept requests and report a free replica."""
    for peer in core.peers:
        report = peer.report
        if report is not None and peer.standing not in _AWAY and any(each.available for each in report.capacities):
            yield peer


def may_be_used(core: GatewayState, peer: PeerState) -> bool:
    """True if requests may be forwarded to the peer, by policy, lockdown and overflow mode, for a model that is free
    there."""
    if core.forwarding_stop is not None or core.policy.closed_reason or peer.report is None:
        return False
    rule, placement = core.policy.process, core.config.placement
    if not rule.allows(peer.spec.place):
        return False
    is_sibling = peer.spec.place.region == core.place.region
    return any(
        each.available
        and rule.allows(each.place)
        and (is_sibling or placement.overflow_of(each.model) is OverflowMode.ON)
        for each in peer.report.capacities
    )
