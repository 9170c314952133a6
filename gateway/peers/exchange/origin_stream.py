"""Origin's end of one stream to a peer: the forwards sent over it, and the peer's answers to each.

It makes no decision about a request. A fault that breaks the stream, ours or the peer's, ends each of its forwards
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import grpc
import grpc.aio

from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.peers.exchange.batches import (
    FRAMES_MAX,
    UNASKED_BYTES_MAX,
    FrameBatcher,
    Outgoing,
    has_unknown_fields,
    read_message,
)
from gateway.peers.exchange.grpc_internals import CallOver, writer_of
from gateway.peers.exchange.wasted_frames import CREDIT_MIN, WASTED_MAX, WastedFrameLimit
from gateway.peers.forward_messages import ForwardMessage, MessageReceiver, closed_without_message, failure_in
from gateway.request.legs import LegFailure
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

METHOD = "/nightside.mesh.v1.PeerService/Exchange"
_WORDS_WAITING_MAX = 8
"""Words other than data that may wait for one answer's reader: a peer that keeps the order has three at most."""
_LEFT_MAX = 8192
"""Forwards that this gateway has left and whose end the peer has not confirmed yet; one more breaks the stream."""
_CLOSE_WAIT_S = 5.0
"""Seconds that a peer may take to close a stream that this gateway has closed on its side."""
_KNOWN = ("forward", "accepted", "refused", "head", "data", "ended", "credit", "last")
_WORDS: tuple[Literal["accepted", "refused", "head"], ...] = ("accepted", "refused", "head")

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class OriginStream:
    """One stream. `open` begins forwards on it while `run` runs it."""

    def __init__(
        self,
        call: Call,
        clock: Clock,
        *,
        window_bytes: int,
        gap_ns: int,
        on_ignored: Callable[[], None],
        is_shortage: Callable[[BaseException], bool],
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`window_bytes` is the credit that the peer has for each forward, `gap_ns` the gap between messages (see
        `FrameBatcher`). `is_shortage` tells whether an error is a shortage of this gateway's own; `on_turn` is called
        after each message of the peer was handed on."""
        self._on_turn = on_turn
        self.window_bytes = window_bytes
        self.opened_ns = clock.now_ns()
        self.is_retiring = False
        """True if new forwards belong on another stream."""
        self.has_spoken = False
        """True once the peer has sent a message on it."""
        self.has_served = False
        """True once the peer has reported the end of a forward on it."""
        self.broken: LegFailure | None = None
        """Reason why the stream is over; None while it is open."""
        self.is_connection_lost = False
        self._call = call
        self._clock = clock
        self._on_ignored = on_ignored
        self._is_shortage = is_shortage
        self._outbox = FrameBatcher(pb.OriginFrame, "request", gap_ns=gap_ns)
        self._forwards: dict[int, OriginForward] = {}
        self._last_id = 0
        self._left = 0
        self._patience = WastedFrameLimit()
        self._peer_closes = False
        self._was_retiring = False
        self._broke_with = 0
        """Forwards that ran on the stream when it ended."""

    @property
    def has_closed(self) -> bool:
        """True if the stream was retiring and no forward ran on it when it ended."""
        return self._was_retiring and not self._broke_with

    @property
    def forwards(self) -> int:
        return len(self._forwards)

    def open(self, request: bytes, taker: MessageReceiver) -> OriginForward:
        """Begin a forward. `request` is a serialised ForwardRequest; the peer's words go to `taker`."""
        assert self.broken is None, "a broken stream takes no forward"
        assert not self.is_retiring, "a stream that retires takes no forward"
        self._last_id += 1
        forward = OriginForward(self, Outgoing(self._outbox, self._last_id, UNASKED_BYTES_MAX), taker)
        self._forwards[self._last_id] = forward
        forward.begin(request)
        return forward

    def retire(self) -> None:
        """Accept no new forwards; the stream closes after the last one."""
        self.is_retiring = True
        self._close_if_done()

    async def run(self) -> None:
        """Run the stream until either side ends it. Raises nothing but its own cancellation."""
        why: LegFailure = LegFailure(LegResult.INTERNAL, "this gateway closed the connection")
        try:
            async with TaskGroup() as tasks:
                writing = tasks.create_task(self._write())
                why = await self._read()
                writing.cancel()
        except WireError as error:
            why = LegFailure(LegResult.FAILED, f"the peer's message is malformed: {error}")
        except BaseExceptionGroup as group:
            why = LegFailure(LegResult.INTERNAL, f"an error of this gateway's own: {group.exceptions[0]!r}")
        finally:
            self._call.cancel()
            self._break(why)

    async def _read(self) -> LegFailure:
        """Read until the stream is over; returns the reason."""
        try:
            while isinstance(raw := await self._call.read(), bytes):
                self.has_spoken = True
                try:
                    self._take_in(raw)
                finally:
                    self._on_turn()
        except grpc.aio.AioRpcError as error:
            self.is_connection_lost = error.code() is grpc.StatusCode.UNAVAILABLE
            if not self.has_spoken and self._is_shortage(error):
                return LegFailure(LegResult.INTERNAL, failure_in(error).detail)
            return failure_in(error)
        except WireError as error:
            return LegFailure(LegResult.FAILED, f"the peer's message is malformed: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return LegFailure(LegResult.INTERNAL, "this gateway closed the connection")
        return closed_without_message(after_unknown=False)

    async def _write(self) -> None:
        try:
            await self._outbox.send_all(writer_of(self._call))
            async with asyncio.timeout(_CLOSE_WAIT_S):
                await self._call.done_writing()
                await asyncio.Event().wait()
        except TimeoutError:
            self._call.cancel()
        except (CallOver, grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass  # the call is over, and `_read` returns the reason

    # Incoming frames

    def _take_in(self, raw: bytes) -> None:
        message = read_message(pb.ExchangeResponse, raw)
        if message.closing:
            self._peer_closes = True
            self.is_retiring = True
        for number, frame in enumerate(message.frames):
            if number >= FRAMES_MAX:
                self._waste()
            forward = self._forwards.get(frame.forward)
            if forward is None:
                self._ignore()
            elif not forward.take_in(frame):
                self._waste()
        if not message.frames and not message.closing:
            self._waste()
        self._close_if_done()

    def _ignore(self) -> None:
        """Count a frame for a forward that is over or never began."""
        self._on_ignored()
        self._waste()

    def _waste(self) -> None:
        if not self._patience.waste(self._clock.now_ns()):
            raise WireError(f"more than {WASTED_MAX} frames in a second that move nothing")

    # Called by forwards

    def is_over(self, forward: int) -> None:
        """Forget a forward whose last word has come."""
        self.has_served = True
        if self._forwards.pop(forward).is_left:
            self._left -= 1

    def is_left(self, forward: OriginForward, number: int) -> None:
        """Note that this gateway has left a forward. If the peer knows of it, the forward stays until the peer confirms
        its end."""
        if forward.is_over:
            return
        if not forward.has_begun:
            del self._forwards[number]
            self._close_if_done()
            return
        self._left += 1
        if self._left > _LEFT_MAX:
            self._call.cancel()

    def _close_if_done(self) -> None:
        if self.is_retiring and not self._forwards:
            self._outbox.close()

    def _break(self, why: LegFailure) -> None:
        self.broken = why
        forwards, self._forwards = self._forwards, {}
        self._was_retiring, self._broke_with = self.is_retiring, len(forwards)
        for forward in forwards.values():
            forward.break_off(why if forward.has_spoken or not self._peer_closes else _not_looked_at(why))
        self.is_retiring = True
        self._outbox.close()
        self._on_turn()


def _not_looked_at(why: LegFailure) -> LegFailure:
    """Reason for a forward without any answer, on a stream that the peer closed as announced: the peer has not looked
    at it, so it counts as refused. Reasons of this gateway's own stay as they are."""
    if why.result is LegResult.INTERNAL:
        return why
    return LegFailure(LegResult.REFUSED, "the peer closed its stream before it had looked at it", RefusalReason.BUSY)


class OriginForward:
    """One forward: the peer's words go to its taker, in order, as long as that has room."""

    __slots__ = (
        "_allowed",
        "_broken",
        "_consumed",
        "_is_paused",
        "_out",
        "_passed_over",
        "_stream",
        "_taker",
        "_waiting",
        "_words_waiting",
        "has_spoken",
        "is_left",
        "is_over",
    )

    def __init__(self, stream: OriginStream, out: Outgoing[pb.OriginFrame], taker: MessageReceiver) -> None:
        self._stream = stream
        self._out = out
        self._taker = taker
        self._waiting: deque[ForwardMessage | bytes] = deque()
        """Words and bytes that have arrived since the taker has no room; credit bounds the bytes."""
        self._words_waiting = 0
        """Number of words among them."""
        self._is_paused = False
        self._allowed = stream.window_bytes
        """Bytes that the peer may still send."""
        self._consumed = 0
        """Bytes consumed here for which no new credit was given yet."""
        self._broken: LegFailure | None = None
        self._passed_over = False
        """The peer's last frame was of an unknown kind."""
        self.has_spoken = False
        self.is_over = False
        self.is_left = False

    def begin(self, request: bytes) -> None:
        frame = self._out.frame
        frame.request_bytes = len(request)
        frame.credit = self._allowed
        self._out.put(request)

    # Called by the leg

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._hand_on()

    def leave(self) -> None:
        """Hand nothing on any more: the peer is told, if it might send more. A second call does nothing."""
        if self.is_left or self._broken is not None or (self.is_over and not self._out.unsent_bytes):
            self.is_left = True
            self._waiting.clear()
            return
        self.is_left = True
        self._waiting.clear()
        self._out.drop()
        if self._out.has_begun:
            self._out.frame.cancel = True
        self._stream.is_left(self, self._out.forward)

    # Called by the stream

    def take_in(self, frame: pb.AnswerFrame) -> bool:
        """Process one frame. False: it makes no progress. Raises WireError for more bytes than there was credit for."""
        data = frame.data
        if len(data) > self._allowed:
            raise WireError(f"more than it had credit for: {len(data)} bytes, of {self._allowed}")
        self._allowed -= len(data)
        if frame.credit:
            self._out.give_credit(frame.credit)
        moves = bool(data) or frame.credit >= CREDIT_MIN
        words: list[ForwardMessage | bytes] = [
            ForwardMessage(kind, getattr(frame, kind)) for kind in _WORDS if frame.HasField(kind)
        ]
        if data:
            words.append(data)
        is_last = frame.last
        if frame.HasField("ended"):
            words.append(ForwardMessage("ended", frame.ended))
        ends_itself = (
            bool(words) and isinstance(last := words[-1], ForwardMessage) and last.kind in ("ended", "refused")
        )
        is_last = is_last or ends_itself
        if is_last:
            self.is_over = True
            self._stream.is_over(self._out.forward)
        if self.is_left:
            return is_last or moves
        says_nothing = not words and self._take_no_word(frame, words)
        if words:
            self._passed_over = False
            self.has_spoken = True
            self._waiting.extend(words)
            self._words_waiting += len(words) - bool(data)
            if self._words_waiting > _WORDS_WAITING_MAX:
                raise WireError(f"more than {_WORDS_WAITING_MAX} words that are not data wait for one answer's reader")
        if is_last and not ends_itself:
            self.has_spoken = True
            self._broken = closed_without_message(after_unknown=self._passed_over)
            self._out.drop()
        self._hand_on()
        return moves or (bool(words) and not says_nothing) or is_last

    def _take_no_word(self, frame: pb.AnswerFrame, words: list[ForwardMessage | bytes]) -> bool:
        """Handle a frame without a known word. It may carry one of a later version; an entirely empty frame counts as a
        word out of order, which returns True."""
        if has_unknown_fields(frame, _KNOWN):
            self._passed_over = True
        elif not frame.credit and not frame.last:
            words.append(ForwardMessage(None, None))
            return True
        return False

    @property
    def has_begun(self) -> bool:
        """True if the peer may know of the forward."""
        return self._out.has_begun

    def break_off(self, why: LegFailure) -> None:
        self.is_over = True
        self._broken = why
        self._out.drop()
        if not self.is_left:
            self._hand_on()

    def _hand_on(self) -> None:
        """Hand on what has arrived, until the taker has no room or leaves. A break is told after what came before
        it."""
        waiting = self._waiting
        while waiting and not self._is_paused and not self.is_left:
            word = waiting.popleft()
            if isinstance(word, bytes):
                self._taker.on_data(word)
                self._note_consumed(len(word))
            else:
                self._words_waiting -= 1
                self._taker.on_word(word)
        if self._broken is not None and not waiting and not self.is_left:
            self.is_left = True
            self._taker.on_broken(replace(self._broken))

    def _note_consumed(self, size: int) -> None:
        """Give new credit, half a window at a time."""
        self._consumed += size
        if self._consumed * 2 >= self._stream.window_bytes and not self.is_over and not self.is_left:
            self._allowed += self._consumed
            self._out.frame.credit += self._consumed
            self._consumed = 0
