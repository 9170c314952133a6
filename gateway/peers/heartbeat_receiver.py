"""Passes observations of all peers on to the core, and tells further listeners about them in passing.

Every event reaches the core unchanged, and none is added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.core.events import Event
from gateway.core.kernel.events import PeersObserved, TargetLost
from gateway.core.vocabulary import ControlVersion, GatewayId
from gateway.peers.heartbeats import Heartbeats
from mesh.control.vocabulary import PeerHeard


class HeartbeatReceiver:
    """Heartbeats of all peers."""

    def __init__(self, hand_on: Callable[[GatewayId, Event], None]) -> None:
        self._hand_on = hand_on
        self._on_control: Callable[[GatewayId, ControlVersion], None] | None = None
        self._on_found: Callable[[], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._heartbeats: dict[GatewayId, Heartbeats] = {}

    def start(
        self,
        *,
        on_control: Callable[[GatewayId, ControlVersion], None],
        on_found: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_control` is called with the version of the controller snapshot that a peer serves by, `on_found` when a
        peer was found, and `on_lost` when the link to a peer broke."""
        self._on_control, self._on_found, self._on_lost = on_control, on_found, on_lost

    def listen_to(self, peer: GatewayId, heartbeats: Heartbeats) -> Callable[[], object]:
        """Register a peer's heartbeats; returns the function that removes them."""
        self._heartbeats[peer] = heartbeats
        return partial(self._forget, peer, heartbeats)

    def called_by(self, peer: GatewayId) -> None:
        """A peer has opened a subscription here, and so is reachable."""
        heartbeats = self._heartbeats.get(peer)
        if heartbeats is not None:
            heartbeats.try_at_once()

    def found(self, peer: GatewayId) -> None:
        """A peer was found: whatever had cut it off may have cut off others, and the controller."""
        self.try_at_once(other_than=peer)
        if self._on_found is not None:
            self._on_found()

    def try_at_once(self, other_than: GatewayId | None = None) -> None:
        """Try all peers that are not heard, instead of each after its own back-off: the network may be back."""
        for peer, heartbeats in self._heartbeats.items():
            if peer != other_than:
                heartbeats.try_at_once()

    def hear(self, peer: GatewayId, event: Event) -> None:
        self._hand_on(peer, event)
        if isinstance(event, PeersObserved) and self._on_control is not None:
            for observation in event.observations:
                self._on_control(peer, observation.report.control)
        elif isinstance(event, TargetLost) and self._on_lost is not None:
            self._on_lost()

    def heard(self) -> list[PeerHeard]:
        """Time and state of the last heartbeat of each peer."""
        return [each.what_was_heard() for each in self._heartbeats.values()]

    def _forget(self, peer: GatewayId, heartbeats: Heartbeats) -> None:
        """Remove a peer's heartbeats, unless newer ones took their place: when a peer's entry changes, its new
        heartbeats are registered before the old ones are removed."""
        if self._heartbeats.get(peer) is heartbeats:
            del self._heartbeats[peer]
