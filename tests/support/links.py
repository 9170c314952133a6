"""Connection to a peer whose streams run in tasks of the test's own loop."""

from __future__ import annotations

import asyncio

from gateway.config.sections import PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.peers.link import PeerLink
from mesh.clock import Clock
from mesh.transport import Plaintext, Transport

_DEFAULTS = PeeringConfig()


def peer_link(
    peer: PeerConfig,
    peering: PeeringConfig = _DEFAULTS,
    transport: Transport | None = None,
    clock: Clock | None = None,
) -> PeerLink:
    """Link inside the running loop; its streams end with the channel."""
    return PeerLink(peer, peering, transport or Plaintext(), asyncio.get_running_loop().create_task, clock=clock)
