"""Builds the messages that go out on one stream of an exchange: frames of all its forwards, in batches, shared fairly
and within credit.

It holds no socket: words and bytes are put in, messages are taken out. It never sends more of a forward than the other
side gave credit for, and one forward's bytes do not hold up another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from mesh.waiter import Waiter
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

MESSAGE_BYTES_MAX = 1 << 20
"""Size limit of one message, as `peer.proto` says. Messages sent by this gateway stay below: at most one batch plus the
largest head or refusal."""
BATCH_BYTES_MAX = 128 * 1024
"""A batch that has reached this size takes no further frame. The next batch waits until this one is written: on a slow
line, this is how many bytes may be ahead of a chat's first token."""
FRAMES_MAX = 8192
"""Frames of one message; each one above counts as wasted, since the event loop does nothing else while it reads a
message. A batch has one frame for each forward that has anything to send."""
TURN_BYTES_MIN = 16 * 1024
"""Least share of one forward in a batch, however many forwards there are."""
UNASKED_BYTES_MAX = 256 * 1024
"""Bytes of a request that may be sent before the peer has given any credit."""
GAPS_MAX = 3
"""Upper bound of the number of gaps to wait after a message: one gap for each of its frames. The more forwards run, the
more there is to batch, and the less the delay of each matters."""
CREDIT_MAX = 2**40
"""Sanity bound of the credit of one forward, in bytes."""
_FIELD_TAG = b"\x0a"
"""Protobuf tag of `frames` in either message: field number 1, length-delimited."""


_Frame = TypeVar("_Frame", pb.OriginFrame, pb.AnswerFrame)


class Outgoing(Generic[_Frame]):
    """Unsent words and bytes of one forward, in one direction. Words go out as soon as possible, bytes as credit
    allows."""

    __slots__ = (
        "_bytes",
        "_frame",
        "_is_queued",
        "_last_word",
        "_outbox",
        "_room",
        "credit",
        "forward",
        "has_begun",
        "unsent_bytes",
    )

    def __init__(self, outbox: FrameBatcher[_Frame], forward: int, credit: int) -> None:
        self.forward = forward
        self.credit = credit
        self.unsent_bytes = 0
        self.has_begun = False
        """True once any frame of the forward has gone out."""
        self._outbox: FrameBatcher[_Frame] = outbox
        self._frame: _Frame | None = None
        self._bytes: deque[bytes | memoryview] = deque()
        self._last_word: Callable[[_Frame], None] | None = None
        self._is_queued = False
        self._room: tuple[int, Callable[[], None]] | None = None

    @property
    def frame(self) -> _Frame:
        """The next frame, to write a word into."""
        if self._frame is None:
            self._frame = self._make_frame()
        self._queue()
        return self._frame

    def put(self, data: bytes | memoryview) -> None:
        self._bytes.append(data)
        self.unsent_bytes += len(data)
        if self.credit:
            self._queue()

    def end_with(self, last_word: Callable[[_Frame], None]) -> None:
        """Write this word once all bytes have gone out."""
        self._last_word = last_word
        if not self._bytes:
            self._queue()

    def give_credit(self, size: int) -> None:
        """Add `size` bytes of credit. Raises WireError above CREDIT_MAX."""
        if self.credit + size > CREDIT_MAX:
            raise WireError("more credit than the protocol allows")
        self.credit += size
        if self._bytes:
            self._queue()

    def drop(self) -> None:
        """Discard all that is unsent, without announcing the room it frees."""
        self._frame = self._last_word = self._room = None
        self._bytes.clear()
        self.unsent_bytes = 0

    def when_unsent(self, most: int, then: Callable[[], None]) -> None:
        """Call `then` once, as soon as at most `most` bytes are unsent. A later call replaces this one."""
        self._room = (most, then)

    # Called by the outbox

    def next_frame(self, share: int) -> bytes:
        """Serialise the next frame, with at most `share` bytes of data; empty if there is nothing left to send."""
        self._is_queued = False
        if not self._has_something:
            return b""
        frame = self._frame or self._make_frame()
        self._frame = None
        data = self._take(min(share, self.credit))
        if data:
            self.credit -= len(data)
            setattr(frame, self._outbox.payload, data)
        if self._last_word is not None and not self._bytes:
            self._last_word(frame)
            self._last_word = None
        self.has_begun = True
        raw = frame.SerializeToString()
        if self._has_something:
            self._queue()
        self._tell_of_room()
        return raw

    @property
    def _has_something(self) -> bool:
        has_bytes = bool(self._bytes)
        return (
            self._frame is not None
            or (has_bytes and self.credit > 0)
            or (self._last_word is not None and not has_bytes)
        )

    def _make_frame(self) -> _Frame:
        frame = self._outbox.make_frame()
        frame.forward = self.forward
        return frame

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._outbox.queue(self)

    def _take(self, most: int) -> bytes:
        """Remove and return up to `most` bytes of the unsent data."""
        pieces = self._bytes
        if not pieces or most <= 0:
            return b""
        if len(pieces) == 1 and len(pieces[0]) <= most:
            data = bytes(pieces.popleft())
        else:
            taken: list[bytes | memoryview] = []
            while pieces and most:
                piece = pieces.popleft()
                if len(piece) > most:
                    view = memoryview(piece)
                    pieces.appendleft(view[most:])
                    piece = view[:most]
                most -= len(piece)
                taken.append(piece)
            data = b"".join(taken)
        self.unsent_bytes -= len(data)
        return data

    def _tell_of_room(self) -> None:
        if self._room is not None and self.unsent_bytes <= self._room[0]:
            then, self._room = self._room[1], None
            then()


class FrameBatcher(Generic[_Frame]):
    """Outgoing side of one stream. Forwards that have something to send queue up, and each sends a batch's share in its
    turn."""

    def __init__(self, make_frame: Callable[[], _Frame], payload: str, *, gap_ns: int = 0) -> None:
        """`payload` is the frame's field for bytes. A message goes out no sooner than `gap_ns` nanoseconds for each
        frame of the message before it (at most `GAPS_MAX` gaps), unless that message left something unsent."""
        self.make_frame: Callable[[], _Frame] = make_frame
        self.payload = payload
        self._gap_s = gap_ns / 1e9
        self._line: deque[Outgoing[_Frame]] = deque()
        self._waiter = Waiter()
        self._prologue = b""
        self._is_closed = False
        self._frames = 0
        """Frames in the last message."""

    @property
    def is_empty(self) -> bool:
        return not self._line and not self._prologue

    @property
    def queued(self) -> int:
        """Number of forwards that are queued."""
        return len(self._line)

    @property
    def pause_s(self) -> float:
        """Seconds to wait between the last message and the next one."""
        return 0.0 if self._line else self._gap_s * min(self._frames, GAPS_MAX)

    def queue(self, outgoing: Outgoing[_Frame]) -> None:
        self._line.append(outgoing)
        self._waiter.wake()

    def say(self, message: bytes) -> None:
        """Send fields of the stream itself, serialised: those of a message that are not frames."""
        self._prologue += message
        self._waiter.wake()

    def close(self) -> None:
        """No more is put in: `send_all` returns once the rest is sent."""
        self._is_closed = True
        self._waiter.wake()

    def next_message(self) -> bytes:
        """Build a message in which each queued forward has a turn, as long as there is room; empty if no forward has
        anything to send."""
        parts = [self._prologue]
        size, self._prologue, self._frames = 0, b"", 0
        line = self._line
        share = max(TURN_BYTES_MIN, BATCH_BYTES_MAX // max(len(line), 1))
        for _ in range(len(line)):  # a forward with more to send goes to the back of the queue
            frame = line.popleft().next_frame(share)
            if frame:
                parts += (_FIELD_TAG, _varint(len(frame)), frame)
                size += len(frame)
                self._frames += 1
                if size >= BATCH_BYTES_MAX:
                    break
        return b"".join(parts)

    async def send_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Send messages until the outbox is closed and empty. Frames put in while a message is being written go out
        with the next one: a message costs far more than its frames, and with many forwards each turn of the event loop
        adds some."""
        loop, due_s = asyncio.get_running_loop(), 0.0
        while True:
            if not self.is_empty:
                if (early_s := due_s - loop.time()) > 0:
                    await asyncio.sleep(early_s)
                message = self.next_message()
                if message:
                    await write(message)
                    due_s = loop.time() + self.pause_s
            elif self._is_closed:
                return
            else:
                await self._waiter.wait()


_Message = TypeVar("_Message", pb.ExchangeRequest, pb.ExchangeResponse)


def read_message(kind: type[_Message], raw: bytes) -> _Message:
    """Parse a message. Raises WireError if it is malformed or too large."""
    if len(raw) > MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {len(raw)} bytes, of {MESSAGE_BYTES_MAX} at most")
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise WireError("bytes that are no message") from None


def has_unknown_fields(message: Any, known: Collection[str]) -> bool:
    """True if the message has fields other than these. Copies the message: call it rarely."""
    rest = type(message)()
    rest.CopyFrom(message)
    for name in known:
        rest.ClearField(name)
    return bool(rest.ByteSize())


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
