"""What is heard of all peers, on its way to the core: whoever else has an ear for it is told in passing.

It keeps nothing from the core and adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.core.events import Event, PeersObserved, TargetLost
from gateway.core.vocabulary import ControlVersion, GatewayId
from gateway.ground.control.vocabulary import PeerHeard
from gateway.peers.heartbeats import Heartbeats


class Ears:
    """One for all peers."""

    def __init__(self, hand_on: Callable[[GatewayId, Event], None]) -> None:
        self._hand_on = hand_on
        self._on_control: Callable[[GatewayId, ControlVersion], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._heartbeats: dict[GatewayId, Heartbeats] = {}

    def start(self, *, on_control: Callable[[GatewayId, ControlVersion], None], on_lost: Callable[[], None]) -> None:
        """`on_control` hears by which word each peer serves, `on_lost` that a peer's link broke."""
        self._on_control, self._on_lost = on_control, on_lost

    def listen_to(self, peer: GatewayId, heartbeats: Heartbeats) -> Callable[[], object]:
        """Gives what ends it."""
        self._heartbeats[peer] = heartbeats
        return partial(self._forget, peer, heartbeats)

    def called_by(self, peer: GatewayId) -> None:
        """A peer has begun to listen to us."""
        heartbeats = self._heartbeats.get(peer)
        if heartbeats is not None:
            heartbeats.called()

    def hear(self, peer: GatewayId, event: Event) -> None:
        self._hand_on(peer, event)
        if isinstance(event, PeersObserved) and self._on_control is not None:
            for observation in event.observations:
                self._on_control(peer, observation.report.control)
        elif isinstance(event, TargetLost) and self._on_lost is not None:
            self._on_lost()

    def heard(self) -> list[PeerHeard]:
        """Of each peer, when last."""
        return [each.what_was_heard() for each in self._heartbeats.values()]

    def _forget(self, peer: GatewayId, heartbeats: Heartbeats) -> None:
        """A peer that is named differently now is listened to anew before the old one is forgotten."""
        if self._heartbeats.get(peer) is heartbeats:
            del self._heartbeats[peer]
