"""Asks a peer which replicas are served away from home, once its heartbeats announce a newer controller snapshot than
ours.

A peer's answer is hearsay: it is handed on, and no decision about it is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping

import grpc.aio
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import ControlVersion, GatewayId
from gateway.peers import codec
from gateway.peers.link import PeerLink
from mesh.channels import status_in_words
from mesh.clock import Clock
from mesh.control.vocabulary import Ownership
from mesh.wire import WireError

_SECOND_NS = 1_000_000_000
ASKED_AT_ONCE_MAX = 4
"""Peers asked at the same time; more than one, so that a peer that stalls does not delay the others."""
REST_NS = 5 * _SECOND_NS
"""Pause after a peer that failed to answer, or answered nothing newer than is known here."""

Learnt = Callable[[GatewayId, Ownership], None]


class OwnershipAsker:
    """Asks each peer at most one question at a time, each with a deadline."""

    def __init__(
        self,
        links: Mapping[GatewayId, PeerLink],
        gateway_id: GatewayId,
        *,
        is_news: Callable[[ControlVersion], bool],
        learnt: Learnt,
        start: Callable[[Coroutine[None, None, None]], object],
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """`is_news` tells whether a snapshot of that version would change anything here."""
        self._links = links
        self._question = codec.ownership_request(gateway_id)
        self._is_news = is_news
        self._learnt = learnt
        self._start = start
        self._clock = clock
        self._log = log
        self._asked: set[GatewayId] = set()
        self._rests_until_ns: dict[GatewayId, int] = {}

    def heard(self, peer: GatewayId, version: ControlVersion) -> None:
        """Take note of the version of the snapshot that a peer serves by, as its heartbeat says; ask the peer if it is
        news."""
        if not self._is_news(version) or peer in self._asked or len(self._asked) >= ASKED_AT_ONCE_MAX:
            return
        link = self._links.get(peer)
        if link is None or self._clock.now_ns() < self._rests_until_ns.get(peer, 0):
            return
        self._asked.add(peer)
        self._start(self._ask(peer, link))

    async def _ask(self, peer: GatewayId, link: PeerLink) -> None:
        try:
            answer = await link.stub.Ownership(self._question, timeout=link.peering.ping_timeout_ns / _SECOND_NS)
            ownership = codec.read_ownership(answer)
        except grpc.aio.AioRpcError as error:
            self._failed(peer, status_in_words(error.code(), error.details()))
        except WireError as error:
            self._failed(peer, f"its answer is malformed: {error}")
        else:
            if self._is_news(ownership.version):
                self._learnt(peer, ownership)
            else:
                self._rest(peer)
        finally:
            self._asked.discard(peer)

    def _failed(self, peer: GatewayId, reason: str) -> None:
        self._log.debug("peer_ownership_query_failed", peer=peer, reason=reason)
        self._rest(peer)

    def _rest(self, peer: GatewayId) -> None:
        now_ns = self._clock.now_ns()
        resting = {each: until_ns for each, until_ns in self._rests_until_ns.items() if until_ns > now_ns}
        self._rests_until_ns = {**resting, peer: now_ns + REST_NS}
