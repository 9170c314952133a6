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
    Outbox,
    Outgoing,
    has_unknown_fields,
    read_message,
)
from gateway.peers.exchange.grpc_internals import CallOver, writer_of
from gateway.peers.exchange.patience import CREDIT_MIN, WASTED_MAX, Patience
from gateway.peers.words import Word, closed_without_a_word, failure_in
from gateway.request.legs import LegFailure
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from mesh.waiter import Waiter
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

METHOD = "/nightside.mesh.v1.PeerService/Exchange"
_LEFT_MAX = 8192
"""Forwards that this gateway has left and whose end the peer has not confirmed yet; one more breaks the stream."""
_CLOSE_WAIT_S = 5.0
"""Seconds that a peer may take to close a stream that this gateway has closed on its side."""
_KNOWN = ("forward", "accepted", "refused", "head", "data", "ended", "credit", "last")
_WORDS: tuple[Literal["accepted", "refused", "head"], ...] = ("accepted", "refused", "head")

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class Unserved(Exception):
    """The peer does not serve `Exchange`, and has run nothing."""


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
    ) -> None:
        """`window_bytes` is the credit that the peer has for each forward, `gap_ns` the gap between messages (see
        `Outbox`). `is_shortage` tells whether an error is a shortage of this gateway's own."""
        self.window_bytes = window_bytes
        self.opened_ns = clock.now_ns()
        self.is_retiring = False
        """True if new forwards belong on another stream."""
        self.has_spoken = False
        """True once the peer has sent a message on it."""
        self.has_served = False
        """True once the peer has reported the end of a forward on it."""
        self.broken: LegFailure | Unserved | None = None
        """Reason why the stream is over; None while it is open."""
        self.is_connection_lost = False
        self._call = call
        self._clock = clock
        self._on_ignored = on_ignored
        self._is_shortage = is_shortage
        self._outbox = Outbox(pb.OriginFrame, "request", gap_ns=gap_ns)
        self._forwards: dict[int, OriginForward] = {}
        self._last_id = 0
        self._left = 0
        self._patience = Patience()
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

    def open(self, request: bytes) -> OriginForward:
        """Begin a forward. `request` is a serialised ForwardRequest."""
        assert self.broken is None, "a broken stream takes no forward"
        assert not self.is_retiring, "a stream that retires takes no forward"
        self._last_id += 1
        forward = OriginForward(self, Outgoing(self._outbox, self._last_id, UNASKED_BYTES_MAX))
        self._forwards[self._last_id] = forward
        forward.begin(request)
        return forward

    def retire(self) -> None:
        """Accept no new forwards; the stream closes after the last one."""
        self.is_retiring = True
        self._close_if_done()

    async def run(self) -> None:
        """Run the stream until either side ends it. Raises nothing but its own cancellation."""
        why: LegFailure | Unserved = LegFailure(LegResult.INTERNAL, "this gateway closed the connection")
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

    async def _read(self) -> LegFailure | Unserved:
        """Read until the stream is over; returns the reason."""
        try:
            while isinstance(raw := await self._call.read(), bytes):
                self.has_spoken = True
                self._take_in(raw)
        except grpc.aio.AioRpcError as error:
            self.is_connection_lost = error.code() is grpc.StatusCode.UNAVAILABLE
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and not self.has_spoken:
                return Unserved()
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
        return closed_without_a_word(after_unknown=False)

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

    def _break(self, why: LegFailure | Unserved) -> None:
        self.broken = why
        forwards, self._forwards = self._forwards, {}
        self._was_retiring, self._broke_with = self.is_retiring, len(forwards)
        for forward in forwards.values():
            forward.break_off(why if forward.has_spoken or not self._peer_closes else _not_looked_at(why))
        self.is_retiring = True
        self._outbox.close()


def _not_looked_at(why: LegFailure | Unserved) -> LegFailure | Unserved:
    """Reason for a forward without any answer, on a stream that the peer closed as announced: the peer has not looked
    at it, so it counts as refused. Reasons of this gateway's own stay as they are."""
    if isinstance(why, Unserved) or why.result is LegResult.INTERNAL:
        return why
    return LegFailure(LegResult.REFUSED, "the peer closed its stream before it had looked at it", RefusalReason.BUSY)


class OriginForward:
    """One forward, as its leg sees it: the peer's words, in order (see `Words`)."""

    __slots__ = (
        "_allowed",
        "_broken",
        "_consumed",
        "_out",
        "_passed_over",
        "_stream",
        "_take",
        "_waiter",
        "_words",
        "has_spoken",
        "is_left",
        "is_over",
    )

    def __init__(self, stream: OriginStream, out: Outgoing[pb.OriginFrame]) -> None:
        self._stream = stream
        self._out = out
        self._words: deque[Word] = deque()
        self._allowed = stream.window_bytes
        """Bytes that the peer may still send."""
        self._consumed = 0
        """Bytes consumed here for which no new credit was given yet."""
        self._take: Callable[[bytes], bool] | None = None
        self._waiter = Waiter()
        self._broken: LegFailure | Unserved | None = None
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

    async def next(self) -> Word:
        while not self._words:
            self._raise_if_broken()
            await self._waiter.wait()
        word = self._words.popleft()
        if word.kind == "data":
            self._note_consumed(len(word.said))
        return word

    async def pour(self, take: Callable[[bytes], bool]) -> Word | None:
        while True:
            while self._words:
                word = await self.next()
                if word.kind != "data":
                    return word
                if not take(word.said):
                    return None
            self._raise_if_broken()
            self._take = take
            try:
                await self._waiter.wait()
            finally:
                has_room, self._take = self._take is not None, None
            if not has_room:
                return None

    async def until_closed(self) -> None:
        pass

    def leave(self) -> None:
        if self.is_left or self._broken is not None or (self.is_over and not self._out.unsent_bytes):
            return
        self.is_left = True
        self._words.clear()
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
        if data and self._take is not None and not self._words:
            self._hand_on(data, self._take)
            data = b""
        return self._take_words(frame, data) or moves

    def _take_words(self, frame: pb.AnswerFrame, data: bytes) -> bool:
        """Take the words of a frame, in their order; those of a forward that was left are dropped. Returns whether the
        frame makes progress."""
        words: list[Word] = [Word(kind, getattr(frame, kind)) for kind in _WORDS if frame.HasField(kind)]
        if data:
            words.append(Word("data", data))
        is_last = frame.last
        if frame.HasField("ended"):
            words.append(Word("ended", frame.ended))
        if words:
            is_last = is_last or words[-1].kind in ("ended", "refused")
        if is_last:
            self.is_over = True
            self._stream.is_over(self._out.forward)
        if self.is_left:
            return is_last
        says_nothing = not words and not frame.data and self._take_no_word(frame, words)
        if words:
            self._passed_over = False
        if is_last and not (words and words[-1].kind in ("ended", "refused")):
            self._broken = closed_without_a_word(after_unknown=self._passed_over)
        if words or self._broken is not None:
            self.has_spoken = True
            self._words.extend(words)
            self._waiter.wake()
        return (bool(words) and not says_nothing) or is_last

    def _take_no_word(self, frame: pb.AnswerFrame, words: list[Word]) -> bool:
        """Handle a frame without a known word. It may carry one of a later version; an entirely empty frame counts as a
        word out of order, which returns True."""
        if has_unknown_fields(frame, _KNOWN):
            self._passed_over = True
        elif not frame.credit and not frame.last:
            words.append(Word(None, None))
            return True
        return False

    @property
    def has_begun(self) -> bool:
        """True if the peer may know of the forward."""
        return self._out.has_begun

    def break_off(self, why: LegFailure | Unserved) -> None:
        self.is_over = True
        self._broken = why
        self._out.drop()
        self._waiter.wake()

    def _hand_on(self, data: bytes, take: Callable[[bytes], bool]) -> None:
        """Hand bytes directly to `take`, without waking the waiting task as long as there is room."""
        try:
            has_room = take(data)
        except Exception as error:  # noqa: BLE001 - it is the waiting task's, which raises it
            self._take = None
            self._waiter.fail(error)
            return
        self._note_consumed(len(data))
        if not has_room:
            self._take = None
            self._waiter.wake()

    def _note_consumed(self, size: int) -> None:
        """Give new credit, half a window at a time."""
        self._consumed += size
        if self._consumed * 2 >= self._stream.window_bytes and not self.is_over:
            self._allowed += self._consumed
            self._out.frame.credit += self._consumed
            self._consumed = 0

    def _raise_if_broken(self) -> None:
        """Raise a new exception each time: the traceback of a stored one would keep references to its readers."""
        if self._broken is not None:
            raise replace(self._broken) if isinstance(self._broken, LegFailure) else Unserved
