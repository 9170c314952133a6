"""Opens a leg at a peer and turns the peer's answer into a head, body bytes or a LegFailure.

Leaving a leg early cancels the request at the peer, down to its engine. The words of a forward travel on a stream that
all forwards to the peer share (`exchange`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.vocabulary import GatewayId, LegResult, RefusalReason
from gateway.peers import codec
from gateway.peers.exchange.origin_stream import OriginForward
from gateway.peers.forward_messages import ForwardMessage, malformed
from gateway.peers.link import PeerLink
from gateway.peers.trust import Tell
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import believed
from gateway.request.legs import STOPPED, LegFailure, LegHandle, LegHead, LegListener, OutboundRequest, RanAt
from mesh.clock import Clock
from mesh.wire import WireError

_SECOND_NS = 1_000_000_000


class PeerLegOpener:
    """Opens legs at peers."""

    def __init__(
        self,
        links: Mapping[GatewayId, PeerLink],
        gateway_id: GatewayId,
        clock: Clock,
        *,
        on_violation: Tell = lambda *_: None,
    ) -> None:
        """`on_violation` is called for each answer from a place that the request's residency rule forbids."""
        self._on_violation = on_violation
        self._links = links
        self._gateway_id = gateway_id
        self._clock = clock

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        link = self._links.get(GatewayId(order.target.id))
        if link is None:
            detail = f"no connection to peer {order.target.id}: it is none of ours any more"
            raise LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
        message = codec.forward_to_pb(order, request, self._gateway_id, self._clock.now_ns()).SerializeToString()
        if len(message) > link.peering.message_max_bytes:
            detail = f"a request of {len(message)} bytes is larger than max, {link.peering.message_max_bytes}"
            raise LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
        leg = PeerLeg(order, link, listener, self._on_violation)
        leg.begin(message)
        return leg


class PeerLeg:
    """A forward at a peer: accepted or refused first, then a head, body bytes and an end."""

    __slots__ = (
        "_forward",
        "_has_head",
        "_is_accepted",
        "_is_over",
        "_link",
        "_listener",
        "_on_violation",
        "_order",
        "_timer",
    )

    def __init__(self, order: StartLeg, link: PeerLink, listener: LegListener, on_violation: Tell) -> None:
        self._order = order
        self._link = link
        self._listener = listener
        self._on_violation = on_violation
        self._forward: OriginForward | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_accepted = self._has_head = self._is_over = False

    def begin(self, message: bytes) -> None:
        """Send the forward. Raises LegFailure. The peer has a time to accept or refuse it."""
        self._forward = self._link.carrier.open(message, self)
        wait_s = self._link.peering.accept_timeout_ns / _SECOND_NS
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._is_late)

    # Handle of the request

    def stop(self) -> None:
        if not self._is_over:
            self._finish()
            self._listener.on_failed(STOPPED)

    def pause(self) -> None:
        if self._forward is not None:
            self._forward.pause()

    def resume(self) -> None:
        if self._forward is not None:
            self._forward.resume()

    # Taker of the peer's words

    def on_word(self, word: ForwardMessage) -> None:
        if self._is_over:
            return
        try:
            self._take(word)
        except LegFailure as failure:
            self._fail(failure)
        except WireError as error:
            self._fail(malformed(error))
        except Exception as error:  # noqa: BLE001 - any other error is this gateway's own
            self._fault(error)

    def on_data(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._has_head:
            self._fail(_out_of_order("data", is_accepted=self._is_accepted))
            return
        try:
            self._listener.on_data(data)
        except Exception as error:  # noqa: BLE001 - it must not end the stream's other forwards
            self._fault(error)

    def on_broken(self, failure: LegFailure) -> None:
        if not self._is_over:
            self._fail(failure)

    # Internal

    def _take(self, word: ForwardMessage) -> None:
        """Take a word in its turn. Raises LegFailure and WireError."""
        if not self._is_accepted:
            self._take_first(word)
        elif word.kind == "ended":
            self._take_end(word)
        elif word.kind == "head" and not self._has_head:
            order = self._order
            head = replace(codec.read_head(word.said), attempt=order.attempt, leg=order.leg)
            self._check_place(head.ran_at)
            self._check_identity(head)
            self._has_head = True
            self._listener.on_head(head)
        elif self._has_head:
            raise LegFailure(LegResult.FAILED, f"the peer sent {word.kind} in the middle of a body")
        else:
            raise _out_of_order(word.kind, is_accepted=True)

    def _take_first(self, word: ForwardMessage) -> None:
        if word.kind == "accepted":
            self._is_accepted = True
            self._stop_timer()
            self._listener.on_accepted()
        elif word.kind == "refused":
            reason, detail = codec.read_refused(word.said)
            raise LegFailure(LegResult.REFUSED, detail, reason)
        else:
            raise _out_of_order(word.kind, is_accepted=False)

    def _take_end(self, word: ForwardMessage) -> None:
        ended = codec.read_ended(word.said)
        if ended.ran_at is not None:
            self._check_place(ended.ran_at)
        check_end(ended)
        if not self._has_head:
            raise LegFailure(LegResult.FAILED, f"it ended as {ended.outcome} without a head")
        self._finish()
        self._listener.on_end(TokenUsage(believed(ended.prompt_tokens), believed(ended.output_tokens)))

    def _is_late(self) -> None:
        self._timer = None
        self._fail(LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time"))
        self._link.turn_over()

    def _fail(self, failure: LegFailure) -> None:
        self._finish()
        self._listener.on_failed(failure)

    def _fault(self, error: Exception) -> None:
        self._finish()
        self._listener.on_fault(error)

    def _finish(self) -> None:
        self._is_over = True
        self._stop_timer()
        forward, self._forward = self._forward, None  # breaks a reference cycle
        if forward is not None:
            forward.leave()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_identity(self, head: LegHead) -> None:
        """Raise LegFailure where the peer reports another identity of the model than the one that the request is bound
        to, so that nothing of its answer reaches the client. An error about the request is no model's answer, and has
        no identity."""
        needed = self._order.identity
        if needed is None or not 200 <= head.status < 300:
            return
        if not needed.takes(head.identity):
            raise LegFailure(LegResult.FAILED, "it was answered by another model of the same name than it is bound to")

    def _check_place(self, ran_at: RanAt) -> None:
        """Raise LegFailure where the peer reports a place that the request's residency rule forbids, so that no more of
        the answer reaches the client. The report can be trusted, since it speaks against the peer itself."""
        order = self._order
        assert order.stamp is not None, "the core gives every forward its stamp"
        if order.stamp.rule.allows(ran_at.place):
            return
        self._on_violation(GatewayId(order.target.id), order.request_id, ran_at)
        where = f"{ran_at.place.region}/{ran_at.place.jurisdiction}"
        raise LegFailure(LegResult.FAILED, f"it ran in {where}, which the request's residency rule forbids")


def _out_of_order(kind: str | None, *, is_accepted: bool) -> LegFailure:
    if is_accepted:
        return LegFailure(LegResult.FAILED, f"the peer sent {kind} before a head")
    return LegFailure(LegResult.FAILED, f"the peer's first word was {kind}")


def check_end(ended: codec.EndedForward) -> None:
    """Raise LegFailure if the peer's answer is incomplete."""
    result, refusal, detail = leg_end_of(ended.outcome, ended.detail)
    if result not in (LegResult.COMPLETED, LegResult.CLIENT_ERROR):
        raise LegFailure(result, detail, refusal, is_final=ended.is_final, notes=ended.notes)
