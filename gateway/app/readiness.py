"""Whether this gateway wants traffic, as balancers and DNS ask at `/ready`. It looks at the core and changes nothing.

Engines change nothing by default: requests wait, or leave, or are told why not. With `readiness.unserved_max`, a
gateway that could serve nobody for so long says that it is not ready, but only while another gateway has room to offer:
the last one is never withdrawn, lest a bad hour of engines become an outage of everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.config import OverflowMode
from gateway.core.peers import PeerState
from gateway.core.state import GatewayState
from gateway.core.vocabulary import Standing

_AWAY = frozenset({Standing.LOST, Standing.STALE, Standing.NOT_ACCEPTING})
_SECOND_NS = 1_000_000_000


class Readiness:
    """Looked at again and again; a peer that is busy for a moment, or an engine that restarts, makes no difference."""

    def __init__(self, core: GatewayState, unserved_max_ns: int | None, now_ns: int) -> None:
        self._core = core
        self._unserved_max_ns = unserved_max_ns
        self._served_ns = now_ns
        """When somebody could last have been served, here or by an allowed peer."""
        self._offered_ns: int | None = None
        """When another gateway last had room, whether we may use it or not."""

    def look(self, now_ns: int) -> None:
        """To be called often. O(peers)."""
        if self._unserved_max_ns is None:
            return
        offering = list(peers_with_room(self._core))
        if offering:
            self._offered_ns = now_ns
        if self._core.replicas.somebody_answers() or any(may_be_used(self._core, peer) for peer in offering):
            self._served_ns = now_ns

    def why_not(self, now_ns: int) -> str:
        """Empty while it is ready, as far as engines go."""
        if self._unserved_max_ns is None or now_ns - self._served_ns <= self._unserved_max_ns:
            return ""
        if self._offered_ns is None or now_ns - self._offered_ns > self._unserved_max_ns:
            return ""
        if not any(peer.standing not in _AWAY for peer in self._core.peers):
            return ""
        seconds = (now_ns - self._served_ns) / _SECOND_NS
        return f"no engine here, and none of an allowed peer, could serve anybody for {seconds:.0f} s"


def engines_note(core: GatewayState) -> str:
    """What an operator should know of the engines of a gateway that is ready all the same; empty while one is up or has
    not been asked yet."""
    is_any_up = core.replicas.somebody_answers()
    if not len(core.replicas) or is_any_up or any(state.sampled_ns is None for state in core.replicas):
        return ""
    if core.replicas.reachable:
        return f"of {len(core.replicas)}, those that are up cannot serve anybody alone"
    return f"none of {len(core.replicas)} is up"


def peers_with_room(core: GatewayState) -> Iterable[PeerState]:
    """Gateways that are alive and take requests, and say that some replica of theirs is free."""
    for peer in core.peers:
        report = peer.report
        if report is not None and peer.standing not in _AWAY and any(each.available for each in report.capacities):
            yield peer


def may_be_used(core: GatewayState, peer: PeerState) -> bool:
    """By the region's own rule, and for at least one model that is free there."""
    if core.locked_down or core.policy.closed_reason or peer.report is None:
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
