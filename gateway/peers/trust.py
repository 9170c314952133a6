"""Stops sending requests to peers whose answer came from where its request must not run.

Only an operator's command or a restart ends that. It cannot undo what a peer has seen: it raises an alarm for each such
answer, and keeps later prompts away from the peer.
"""

from __future__ import annotations

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from gateway.core.events import Event
from gateway.core.kernel.events import TargetLost
from gateway.core.vocabulary import GatewayId, RequestId, peer_target
from gateway.request.legs import RanAt

Tell = Callable[[GatewayId, RequestId, RanAt], None]


class Trust:
    """Filter for events about peers. The core sees a distrusted peer as lost: its heartbeats are dropped here."""

    def __init__(self, submit: Callable[[Event], None], log: FilteringBoundLogger, *told: Tell) -> None:
        """`told` are called for each violation."""
        self._submit = submit
        self._log = log
        self._told = told
        self._broken_by: dict[GatewayId, str] = {}

    def violated(self, peer: GatewayId, request_id: RequestId, ran_at: RanAt) -> None:
        """Record an answer of this peer that came from where the request's residency rule forbids."""
        where = f"{ran_at.place.region}/{ran_at.place.jurisdiction}"
        why = f"it says that it ran a request in {where}, which the request's residency rule forbids"
        self._log.error(
            "residency_violated",
            peer=peer,
            request_id=request_id,
            replica=ran_at.replica_id,
            ran_in=where,
        )
        for tell in self._told:
            tell(peer, request_id, ran_at)
        self._broken_by.setdefault(peer, why)
        self._submit(TargetLost(peer_target(peer), f"distrusted: {why}"))

    def hear(self, peer: GatewayId, event: Event) -> None:
        """Pass an event about a peer on to the core, unless the peer is distrusted."""
        if peer not in self._broken_by:
            self._submit(event)

    def restore(self) -> None:
        """Trust all peers again, at an operator's command: each is a target again with its next heartbeat."""
        if self._broken_by:
            self._log.warning("peer_trust_restored", peers=sorted(self._broken_by))
        self._broken_by.clear()

    def notes(self) -> dict[str, str]:
        """Notes for operators."""
        told = "; ".join(f"{peer}: {why}" for peer, why in self._broken_by.items())
        return {"distrusted_peers": told} if told else {}
