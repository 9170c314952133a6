"""Links to the peers that the operator's configuration names. Other modules hold its two maps and see every change
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId, PeerSpec
from gateway.peers.link import PeerLink

RunLoops = Callable[[PeerLink], list[Callable[[], object]]]
"""Starts the loops that listen to a peer; returns the functions that end them."""


class PeerRoster:
    """Peers by gateway id. A peer whose entry changes counts as a new one: the old link takes no more calls and closes
    after its last one."""

    def __init__(
        self, open_link: Callable[[PeerConfig], PeerLink], run_loops: RunLoops, retire: Callable[[PeerLink], None]
    ) -> None:
        """`retire` closes a link once its calls are over."""
        self.links: dict[GatewayId, PeerLink] = {}
        self.specs: dict[GatewayId, PeerSpec] = {}
        self._open_link = open_link
        self._run_loops = run_loops
        self._retire = retire
        self._endings: dict[GatewayId, list[Callable[[], object]]] = {}

    def replace(self, peers: Iterable[PeerConfig]) -> None:
        """Make these the peers. Tell the core directly afterwards, before any other event."""
        wanted = {peer.spec.gateway_id: peer for peer in peers}
        for gateway_id, link in list(self.links.items()):
            if wanted.get(gateway_id) != link.peer:
                self._drop(gateway_id)
        for gateway_id, peer in wanted.items():
            if gateway_id not in self.links:
                self._add(peer)

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()

    def _add(self, peer: PeerConfig) -> None:
        gateway_id = peer.spec.gateway_id
        link = self._open_link(peer)
        self.links[gateway_id] = link
        self.specs[gateway_id] = peer.spec
        self._endings[gateway_id] = self._run_loops(link)

    def _drop(self, gateway_id: GatewayId) -> None:
        for end in self._endings.pop(gateway_id):
            end()
        del self.specs[gateway_id]
        self._retire(self.links.pop(gateway_id))
