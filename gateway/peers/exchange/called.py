"""Serving end of a stream: runs what one peer forwards over it, each forward in a task of its own.

The caller was identified by its certificate when the stream began, and each forward's claimed origin is checked against
that. A caller that breaks the rules of `peer.proto` loses the stream and all forwards on it; no other peer and no
engine is affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import EndRequest, RefuseForward
from gateway.core.vocabulary import GatewayId, Outcome, RefusalReason
from gateway.peers import codec
from gateway.peers.exchange.batches import UNASKED_BYTES_MAX, Outbox, Outgoing, read_message
from gateway.peers.exchange.patience import CREDIT_MIN, WASTED_MAX, Patience
from gateway.peers.reception import Reception
from gateway.peers.room import PeerRoom, Place
from gateway.request.legs import LegHead, RequestSummary, SinkGone
from mesh.task_group import TaskGroup
from mesh.transport import Claim
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
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


class CalledStream:
    """One stream, from its begin to its end in `serve`."""

    def __init__(
        self,
        context: Context,
        reception: Reception,
        room: PeerRoom,
        patience: Patience,
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
        self._outbox = Outbox(pb.AnswerFrame, "data", gap_ns=peering.batch_gap_ns)
        self._forwards: dict[int, CalledForward] = {}
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
                self._take_in(raw)
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
        self._add(frame, Held(self._reception, place)).take_in(frame)

    def _turn_away(self, frame: pb.OriginFrame, why: str) -> None:
        """Refuse a forward before any of its request is looked at."""
        forward = self._add(frame, None)
        forward.refuse(RefusalReason.BUSY, why)
        self.waste()
        forward.take_in(frame)

    def _add(self, frame: pb.OriginFrame, held: Held | None) -> CalledForward:
        forward = CalledForward(self, Outgoing(self._outbox, frame.forward, 0), frame.request_bytes, held)
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

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

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
        self._end_if_done()

    def _fail(self, fault: StreamFault) -> None:
        if self._fault is None:
            self._fault = fault

    def _end_if_done(self) -> None:
        if self._is_closing and not self._forwards:
            self._ending.set()

    def _cancel_all(self) -> None:
        for forward in list(self._forwards.values()):
            forward.abandon()

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(self._context.write)
        except grpc.aio.BaseError:
            self._ending.set()  # the call is over, and so is the stream


class Held:
    """Resources of this gateway that a forward holds from its first frame on."""

    __slots__ = ("_place", "_reception")

    def __init__(self, reception: Reception, place: Place) -> None:
        self._reception = reception
        self._place = place
        reception.enter()
        place.__enter__()

    def keep(self, more: int) -> bool:
        return self._place.keep(more)

    def close(self) -> None:
        self._place.__exit__()
        self._reception.leave()


class CalledForward:
    """One forward: its request arrives in pieces, and then runs."""

    __slots__ = (
        "_allowed",
        "_held",
        "_is_refused",
        "_missing",
        "_pieces",
        "_stream",
        "_task",
        "_timer",
        "has_answered",
        "is_accepted",
        "out",
    )

    def __init__(
        self, stream: CalledStream, out: Outgoing[pb.AnswerFrame], request_bytes: int, held: Held | None
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
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False

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
        elif self._timer is None:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        """Give credit for the rest of the request at once, since memory is reserved for all of it, and start the
        time-out for its arrival."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stream.accept_timeout_s, self.refuse, RefusalReason.BUSY, _NOT_IN_TIME)
        rest = self._missing - self._allowed
        if rest > 0:
            self._allowed += rest
            self.out.frame.credit = rest

    def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        request = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._task = self._stream.start(self._serve(request))
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before its first step."""
        self._give_back()
        if task.cancelled():
            self.out.drop()
            self.out.frame.last = True
        self._stream.is_over(self.out.forward)

    def refuse(self, reason: RefusalReason, detail: str) -> None:
        """Refuse the forward; it is over once the rest of its request has arrived."""
        self._is_refused = True
        self._pieces.clear()
        self._give_back()
        self.out.frame.refused.CopyFrom(codec.refusal_to_pb(reason, detail))
        self._leave_if_refused()

    def _give_back(self) -> None:
        """Release the forward's place and memory; a second call does nothing."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _leave_if_refused(self) -> None:
        if not self._missing:
            self._stream.is_over(self.out.forward)

    def _cancel(self) -> None:
        """Cancel the forward at its origin's request; a last frame confirms its end."""
        if not self.has_answered and not self._is_refused:
            self._stream.waste()
        self.abandon()

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            self._let_go()
        else:
            self._task.cancel()

    def _let_go(self) -> None:
        self._give_back()
        self.out.drop()
        if not self._is_refused:
            self.out.frame.last = True
        self._stream.is_over(self.out.forward)

    # Task of the forward

    async def _serve(self, request: bytes) -> None:
        """Run the request and report every error, so that the stream's other forwards go on. Raises nothing."""
        reception = self._stream.reception
        try:
            await self._serve_read(reception, request)
        except StreamFault as fault:
            self._stream.fail(fault)
        except SinkGone:
            self.out.drop()
            self.out.frame.last = True
        except Exception as error:  # noqa: BLE001 - an error of ours ends this forward, and no other
            reception.note_fault(error)
            if self.is_accepted:
                self.out.end_with(_say_failed)
            else:
                self._say_refused(RefusalReason.BUSY, _OUR_FAULT)

    async def _serve_read(self, reception: Reception, request: bytes) -> None:
        origin = GatewayId("")
        try:
            try:
                arrived, claim = reception.read(pb.ForwardRequest.FromString(request))
            except DecodeError:
                raise WireError("the request is no message") from None
            self._stream.check_claim(claim)
            origin = claim[0]
            arrived, body = reception.scrutinise(arrived)
        except WireError as error:
            reception.note_malformed(origin, error, self._stream.caller)
            self._say_refused(RefusalReason.BUSY, f"INVALID_ARGUMENT: {error}")
            self._stream.waste()
            return
        if why := reception.why_not_now(body):
            self._say_refused(RefusalReason.BUSY, why)
            return
        assert self._held is not None, "it is let in"
        end = await reception.run(arrived, ExchangeSink(self, arrived.event.deadline_ns), self._held.keep)
        if isinstance(end, RefuseForward):
            self._say_refused(end.reason, end.detail)

    def _say_refused(self, reason: RefusalReason, detail: str) -> None:
        self.out.frame.refused.CopyFrom(codec.refusal_to_pb(reason, detail))

    def left_s(self, deadline_ns: int) -> float:
        """Seconds that unread answer bytes may stay here."""
        return max(deadline_ns - self._stream.reception.clock.now_ns(), 0) / _SECOND_NS + _UNREAD_GRACE_S


_OUR_FAULT = "an error of this gateway's own"
_NOT_IN_TIME = "the request did not come in time"


def _say_failed(frame: pb.AnswerFrame) -> None:
    frame.ended.CopyFrom(pb.Ended(outcome=Outcome.FAILED_INTERNALLY, detail=_OUR_FAULT))


class ExchangeSink:
    """Sends a request's answer back over the stream that the request came on. Writes never wait for the socket: frames
    of one turn of the event loop go out together, and `drain` waits only for an origin that reads slowly."""

    is_immediate = True

    __slots__ = ("_deadline_ns", "_forward", "_out")

    def __init__(self, forward: CalledForward, deadline_ns: int) -> None:
        self._forward = forward
        self._out = forward.out
        self._deadline_ns = deadline_ns

    async def accepted(self) -> None:
        self._forward.is_accepted = True
        self._out.frame.accepted.SetInParent()

    async def start(self, head: LegHead) -> None:
        self._forward.has_answered = True
        codec.write_head(self._out.frame.head, head)

    def put(self, data: bytes) -> bool:
        out = self._out
        if data:
            out.put(data)
        return out.unsent_bytes <= _UNREAD_BYTES_MAX

    async def drain(self) -> None:
        await self._until_unsent(_UNREAD_BYTES_MAX)

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        ended = codec.end_to_pb(end, summary)
        self._out.end_with(lambda frame: frame.ended.CopyFrom(ended))
        if self._out.unsent_bytes > self._out.credit:
            await self._until_unsent(0)

    async def _until_unsent(self, most: int) -> None:
        if self._out.unsent_bytes <= most:
            return
        try:
            async with asyncio.timeout(self._forward.left_s(self._deadline_ns)):
                await self._out.until_unsent(most)
        except TimeoutError as error:
            raise SinkGone("the gateway that forwarded it stopped reading") from error
