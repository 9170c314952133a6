"""Serving end of a stream: runs what one peer forwards over it.

The caller was identified by its certificate when the stream began, and each forward's claimed origin is checked against
that. A caller that breaks the rules of `peer.proto` loses the stream and all forwards on it; no other peer and no
engine is affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest, RefuseForward
from gateway.core.vocabulary import GatewayId, RefusalReason
from gateway.peers import codec
from gateway.peers.exchange.batches import UNASKED_BYTES_MAX, FrameBatcher, Outgoing, read_message
from gateway.peers.exchange.wasted_frames import CREDIT_MIN, WASTED_MAX, WastedFrameLimit
from gateway.peers.forward_memory import ForwardMemory, MemoryClaim
from gateway.peers.forward_receiver import Reception
from gateway.request.legs import LegHead, RequestSummary
from gateway.request.proxied import ProxiedRequest
from mesh.task_group import TaskGroup
from mesh.transport import Claim
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_REFUSED_MAX = 8192
"""Refused forwards whose request is still to come, above which the stream ends."""
_UNSENT_MAX = 8192
"""Forwards that are over and whose last frames the peer has not read, above which the stream ends."""
_UNREAD_BYTES_MAX = 64 * 1024
"""Bytes of one answer that may wait here for credit or for their turn; more makes the relay wait before it reads on
from the engine."""
_UNREAD_GRACE_S = 10.0
"""Seconds after the request's deadline at which an answer that the origin does not read is given up."""
_LAST_WORDS_S = 5.0
"""Seconds that the last frames may take to go out once the stream is ending."""
_CLOSING = pb.ExchangeResponse(closing=True).SerializeToString()

Context = grpc.aio.ServicerContext[Any, Any]


class StreamFault(Exception):
    """Ends a stream with this gRPC status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ServingStream:
    """One stream, from its begin to its end in `serve`."""

    def __init__(
        self,
        context: Context,
        reception: Reception,
        room: ForwardMemory,
        patience: WastedFrameLimit,
        *,
        caller: str,
        peering: PeeringConfig,
        claim_fault: Callable[[Claim], str | None],
        on_ignored: Callable[[GatewayId], None],
    ) -> None:
        """`claim_fault` returns why the caller may not claim to be a given gateway, or None. `patience` is shared by
        all streams of the caller."""
        self.origin = GatewayId("")
        """Gateway that the caller has proven to be; empty before its first forward."""
        self._context = context
        self._reception = reception
        self._room = room
        self._patience = patience
        self._caller = caller
        self._peering = peering
        self._claim_fault = claim_fault
        self._on_ignored = on_ignored
        self._claim: Claim | None = None
        self._outbox = FrameBatcher(pb.AnswerFrame, "data", gap_ns=peering.batch_gap_ns)
        self._forwards: dict[int, ServedForward] = {}
        self._refused: set[int] = set()
        """Forwards that were refused before all of their request had come."""
        self._last_id = 0
        self._is_closing = False
        self._ending = asyncio.Event()
        self._fault: StreamFault | None = None
        self._tasks = TaskGroup()

    async def serve(self) -> None:
        """Serve until the caller leaves, a rule is broken, or `close` was called and no forward runs any more. Raises
        StreamFault."""
        await self._context.send_initial_metadata(())  # gRPC otherwise buffers messages for a possible retry
        try:
            async with self._tasks:
                reading = self._tasks.create_task(self._read())
                writing = self._tasks.create_task(self._write())
                try:
                    await self._ending.wait()
                finally:
                    reading.cancel()
                    self._cancel_all()
                self._outbox.close()
                if self._fault is not None:
                    writing.cancel()  # the status tells the caller why
                else:
                    asyncio.get_running_loop().call_later(_LAST_WORDS_S, writing.cancel)
        finally:
            self._cancel_all()
        if self._fault is not None:
            try:
                raise self._fault
            finally:
                self._fault = None  # the exception's traceback refers to this stream

    def close(self) -> None:
        """Accept no new forwards, and end after the last one."""
        self._is_closing = True
        self._outbox.say(_CLOSING)
        self._end_if_done()

    # Incoming frames

    async def _read(self) -> None:
        try:
            while isinstance(raw := await self._context.read(), bytes):
                try:
                    self._take_in(raw)
                finally:
                    self._reception.turn_over()
        except StreamFault as fault:
            self._fail(fault)
        except WireError as error:
            self._fail(StreamFault(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except grpc.aio.BaseError as error:
            self._fail(StreamFault(grpc.StatusCode.INTERNAL, str(error)))
        self._ending.set()

    def _take_in(self, raw: bytes) -> None:
        message = read_message(pb.ExchangeRequest, raw)
        for frame in message.frames:
            if frame.request_bytes:
                self._begin(frame)
                continue
            forward = self._forwards.get(frame.forward)
            if forward is None:
                self._on_ignored(self.origin)
                self.waste()
            else:
                forward.take_in(frame)
        if not message.frames:
            self.waste()
        if self._outbox.queued - len(self._forwards) > _UNSENT_MAX:
            raise StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many last words are left unread")

    def _begin(self, frame: pb.OriginFrame) -> None:
        if frame.forward <= self._last_id:
            raise WireError(f"forward {frame.forward} is begun after {self._last_id}")
        self._last_id = frame.forward
        if frame.request_bytes > self._peering.message_max_bytes:
            most = self._peering.message_max_bytes
            self._turn_away(
                frame, f"RESOURCE_EXHAUSTED: a request of {frame.request_bytes} bytes is larger than max, {most}"
            )
        elif self._reception.is_full:
            self._turn_away(frame, "too many forwards at once")
        else:
            self._let_in(frame)

    def _let_in(self, frame: pb.OriginFrame) -> None:
        """Admit a forward: it counts as running, and its request's memory is reserved, until it is over."""
        place = self._room.place_of(self._caller, frame.request_bytes)
        if place is None:
            self._turn_away(frame, "too much is held for other gateways")
            return
        forward = self._add(frame, ForwardResources(self._reception, place))
        forward.take_in(frame)
        forward.wait_for_rest()

    def _turn_away(self, frame: pb.OriginFrame, why: str) -> None:
        """Refuse a forward before any of its request is looked at."""
        forward = self._add(frame, None)
        forward.refuse(RefusalReason.BUSY, why)
        self.waste()
        forward.take_in(frame)

    def _add(self, frame: pb.OriginFrame, held: ForwardResources | None) -> ServedForward:
        forward = ServedForward(self, Outgoing(self._outbox, frame.forward, 0), frame.request_bytes, held)
        self._forwards[frame.forward] = forward
        return forward

    def waste(self) -> None:
        """Count a frame or message that makes no progress. Raises StreamFault when there were too many."""
        if not self._patience.waste(self._reception.clock.now_ns()):
            reason = f"more than {WASTED_MAX} frames in a second that move nothing"
            raise StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    # Services for the forwards

    @property
    def accept_timeout_s(self) -> float:
        return self._peering.accept_timeout_ns / _SECOND_NS

    @property
    def reception(self) -> Reception:
        return self._reception

    @property
    def caller(self) -> str:
        return self._caller

    def check_claim(self, claim: Claim) -> None:
        """Check the claimed origin against the caller's certificate. Raises StreamFault."""
        if claim == self._claim:
            return
        fault = self._claim_fault(claim)
        if fault is not None:
            raise StreamFault(grpc.StatusCode.PERMISSION_DENIED, fault)
        self._claim, self.origin = claim, claim[0]

    def fail(self, fault: StreamFault) -> None:
        self._fail(fault)
        self._ending.set()

    def is_over(self, forward: int) -> None:
        self._forwards.pop(forward, None)
        self._refused.discard(forward)
        self._end_if_done()

    def is_refused_early(self, forward: int) -> None:
        """Note a refused forward whose request is still to come; too many of them end the stream."""
        self._refused.add(forward)
        if len(self._refused) > _REFUSED_MAX:
            self.fail(StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many refused requests are left unfinished"))
        self._end_if_done()

    def _fail(self, fault: StreamFault) -> None:
        if self._fault is None:
            self._fault = fault

    def _end_if_done(self) -> None:
        if self._is_closing and len(self._forwards) == len(self._refused):
            self._ending.set()

    def _cancel_all(self) -> None:
        for forward in list(self._forwards.values()):
            forward.abandon()
        self._reception.turn_over()

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(self._context.write)
        except grpc.aio.BaseError:
            self._ending.set()  # the call is over, and so is the stream


class ForwardResources:
    """Resources of this gateway that a forward holds from its first frame on."""

    __slots__ = ("_place", "_reception")

    def __init__(self, reception: Reception, place: MemoryClaim) -> None:
        self._reception = reception
        self._place = place
        reception.enter()

    def keep(self, more: int) -> bool:
        return self._place.keep(more)

    def close(self) -> None:
        self._place.close()
        self._reception.leave()


class ServedForward:
    """One forward: its request arrives in pieces, and then runs. It is the sink of its own answer.

    Writes never wait for the socket: frames of one turn of the event loop go out together, and the relay pauses only
    for an origin that reads slowly.
    """

    __slots__ = (
        "_allowed",
        "_deadline_ns",
        "_held",
        "_is_abandoned",
        "_is_ended",
        "_is_refused",
        "_missing",
        "_pieces",
        "_request",
        "_stream",
        "_timer",
        "has_answered",
        "is_accepted",
        "out",
    )

    def __init__(
        self, stream: ServingStream, out: Outgoing[pb.AnswerFrame], request_bytes: int, held: ForwardResources | None
    ) -> None:
        self.out = out
        self.is_accepted = False
        self.has_answered = False
        """True once the head of the answer has been put."""
        self._stream = stream
        self._held = held
        self._missing = request_bytes
        self._allowed = UNASKED_BYTES_MAX
        self._pieces: list[bytes] = []
        self._request: ProxiedRequest | None = None
        self._deadline_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._is_abandoned = False
        self._is_ended = False

    def take_in(self, frame: pb.OriginFrame) -> None:
        """Process one frame. Raises WireError and StreamFault if it breaks the rules."""
        if frame.credit:
            self.out.give_credit(frame.credit)
        if frame.cancel:
            self._cancel()
            return
        if frame.request:
            self._take_piece(frame.request)
        elif frame.credit < CREDIT_MIN:
            self._stream.waste()

    def _take_piece(self, piece: bytes) -> None:
        if len(piece) > self._missing:
            raise WireError("more of a request than was announced")
        if len(piece) > self._allowed:
            raise WireError("more of a request than there was credit for")
        self._missing -= len(piece)
        self._allowed -= len(piece)
        if self._missing and len(piece) < CREDIT_MIN:
            self._stream.waste()
        if self._is_refused:
            self._leave_if_refused()
            return
        self._pieces.append(piece)
        if not self._missing:
            self._run()

    def wait_for_rest(self) -> None:
        """Give credit for the rest of the request at once, since memory is reserved for all of it, and start the
        time-out for its arrival. Nothing is waited for if all has come, or the forward is over."""
        if not self._missing or self._held is None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stream.accept_timeout_s, self.refuse, RefusalReason.BUSY, _NOT_IN_TIME)
        rest = self._missing - self._allowed
        if rest > 0:
            self._allowed += rest
            self.out.frame.credit = rest

    def _run(self) -> None:
        """Begin the request, and report every error, so that the stream's other forwards go on."""
        self._stop_timer()
        request = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        try:
            self._begin(request)
        except StreamFault:
            raise
        except Exception as error:  # noqa: BLE001 - an error of ours ends this forward, and no other
            self._stream.reception.note_fault(error)
            self._end_refused(RefusalReason.BUSY, _OUR_FAULT)

    def _begin(self, request: bytes) -> None:
        reception, origin = self._stream.reception, GatewayId("")
        try:
            try:
                arrived, claim = reception.read(pb.ForwardRequest.FromString(request))
            except DecodeError:
                raise WireError("the request is no message") from None
            self._stream.check_claim(claim)
            origin = claim[0]
            arrived, body = reception.check_forward(arrived)
        except WireError as error:
            reception.note_malformed(origin, error, self._stream.caller)
            self._end_refused(RefusalReason.BUSY, f"INVALID_ARGUMENT: {error}")
            self._stream.waste()
            return
        if why := reception.why_not_now(body):
            self._end_refused(RefusalReason.BUSY, why)
            return
        assert self._held is not None, "it is let in"
        self._deadline_ns = arrived.event.deadline_ns
        self._request = reception.request_of(arrived, self, self._held.keep)
        self._request.begin()

    def refuse(self, reason: RefusalReason, detail: str) -> None:
        """Refuse the forward; it is over once the rest of its request has arrived."""
        self._is_refused = True
        self._pieces.clear()
        self._give_back()
        self._say_refused(reason, detail)
        self._leave_if_refused()

    def _give_back(self) -> None:
        """Release the forward's place and memory; a second call does nothing."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _leave_if_refused(self) -> None:
        if self._missing:
            self._stream.is_refused_early(self.out.forward)
        else:
            self._stream.is_over(self.out.forward)

    def _cancel(self) -> None:
        """Cancel the forward at its origin's request; a last frame confirms its end."""
        if not self.has_answered and not self._is_refused:
            self._stream.waste()
        self.abandon()

    def abandon(self) -> None:
        """Give the forward up, since its origin has left it. It is over once its request has ended."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        self._stop_timer()
        if not self._is_refused:  # a refusal goes out: it is the last word, which the origin waits for
            self.out.drop()
        if self._request is None or self._is_ended:
            self._finish()
        else:
            self._request.client_left()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_refused(self, reason: RefusalReason, detail: str) -> None:
        self._say_refused(reason, detail)
        self._finish()

    def _say_refused(self, reason: RefusalReason, detail: str) -> None:
        self.out.frame.refused.CopyFrom(codec.refusal_to_pb(reason, detail))

    def _finish(self) -> None:
        """Forget the forward: all of its answer is on its way."""
        self._stop_timer()
        self._give_back()
        self._request = None  # breaks a reference cycle
        if self._is_abandoned and not self._is_refused:
            self.out.frame.last = True
        self._stream.is_over(self.out.forward)

    # Sink of the answer

    def accepted(self) -> None:
        self.is_accepted = True
        self.out.frame.accepted.SetInParent()

    def refused(self, refusal: RefuseForward) -> None:
        self._is_ended = True
        self._end_refused(refusal.reason, refusal.detail)

    def start(self, head: LegHead) -> None:
        self.has_answered = True
        codec.write_head(self.out.frame.head, head)

    def write(self, data: bytes) -> bool:
        out = self.out
        if data and not self._is_abandoned:
            out.put(data)
        if out.unsent_bytes <= _UNREAD_BYTES_MAX:
            return True
        self._wait_until_unsent(_UNREAD_BYTES_MAX, self._has_room)
        return False

    def end(self, end: EndRequest, summary: RequestSummary) -> None:
        self._is_ended = True
        self._stop_timer()
        if self._is_abandoned:
            self._finish()
            return
        ended = codec.end_to_pb(end, summary)
        self.out.end_with(lambda frame: frame.ended.CopyFrom(ended))
        if self.out.unsent_bytes > self.out.credit:
            self._wait_until_unsent(0, self._finish)
        else:
            self._finish()

    def _wait_until_unsent(self, most: int, then: Callable[[], None]) -> None:
        """Call `then` once the origin has read enough. One that reads nothing until some time after the request's
        deadline is taken to have left."""
        self.out.when_unsent(most, then)
        if self._timer is None:
            left_ns = max(self._deadline_ns - self._stream.reception.clock.now_ns(), 0)
            wait_s = left_ns / _SECOND_NS + _UNREAD_GRACE_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._is_unread)

    def _has_room(self) -> None:
        self._stop_timer()
        if self._request is not None:
            self._request.on_writable()
            self._stream.reception.turn_over()

    def _is_unread(self) -> None:
        self._timer = None
        self.abandon()
        self._stream.reception.turn_over()


_OUR_FAULT = "an error of this gateway's own"
_NOT_IN_TIME = "the request did not come in time"
