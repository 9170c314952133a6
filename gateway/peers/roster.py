"""The links to our peers, as our own operator names them now. Others hold its two maps and see every change there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId, PeerSpec
from gateway.peers.link import PeerLink

RunLoops = Callable[[PeerLink], list[Callable[[], object]]]
"""Starts what listens to a peer. Gives what ends it, when it is a peer no longer."""


class PeerRoster:
    """A peer that is named differently is a new one: the old link takes no calls any more and closes after its last."""

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
        """Know exactly these from now on. Tell the core right after, before anything else can happen."""
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
