"""Asks a peer what it decided about a request that this gateway forwarded to it. Serves operators: no request waits for
the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio

from gateway.core.vocabulary import GatewayId, RequestId
from gateway.peers import codec
from gateway.peers.link import ChannelClosed, PeerLink, answer_of
from gateway.records.decisions import OtherSide
from mesh.channels import status_in_words
from mesh.wire import WireError

_SECOND_NS = 1_000_000_000


class PeerExplainer:
    """Sends the question over the peer connections that exist anyway."""

    def __init__(self, links: Mapping[GatewayId, PeerLink], gateway_id: GatewayId) -> None:
        self._links = links
        self._gateway_id = gateway_id

    async def ask(self, peer: GatewayId, request_id: RequestId) -> OtherSide:
        """Return an answer in every case: the peer's explanation, or why there is none."""
        link = self._links.get(peer)
        if link is None:
            return OtherSide(peer, None, "it is no peer of ours any more")
        question = codec.explain_request(self._gateway_id, request_id)
        try:
            timeout_s = link.peering.ping_timeout_ns / _SECOND_NS
            answer = await answer_of(link.stub.Explain(question, timeout=timeout_s))
            explained = codec.read_explained(answer)
        except grpc.aio.AioRpcError as error:
            return OtherSide(peer, None, _problem(error))
        except ChannelClosed:
            return OtherSide(peer, None, "this gateway closed the connection to it")
        except WireError as error:
            return OtherSide(peer, None, f"its answer is malformed: {error}")
        if (explained.gateway, explained.request_id) != (peer, request_id):
            return OtherSide(peer, None, "its answer is about another request or from another gateway")
        return OtherSide(peer, explained)


def _problem(error: grpc.aio.AioRpcError) -> str:
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return "it remembers no such request of ours"
        case grpc.StatusCode.UNIMPLEMENTED:
            return "its version cannot explain decisions"
        case code:
            return f"it cannot be reached ({status_in_words(code, error.details())})"
