"""What goes out on one stream of an exchange: frames of all its forwards, batched, fair and within credit.

It holds no socket: words and bytes are put in, messages are taken out. It never sends more of a forward than the other
side gave credit for, nor lets one forward's bytes hold up another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

from gateway.ground.waiter import Waiter
from gateway.ground.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb

MESSAGE_BYTES_MAX = 1 << 20
"""Of one message, as `peer.proto` says. Ours stay below: what a batch may hold, and the largest head or refusal."""
BATCH_BYTES_MAX = 128 * 1024
"""A batch takes no further frame behind this much. What comes next waits for it to be written: on a slow line it is
what a chat's first token may find ahead of itself."""
FRAMES_MAX = 8192
"""Of one message, before each further one is taken for waste: what reads a message does nothing else meanwhile. A batch
has one for each forward that has something to say."""
TURN_BYTES_MIN = 16 * 1024
"""Of one forward in a batch, however many others there are."""
UNASKED_BYTES_MAX = 256 * 1024
"""Of a request, before the peer has given any credit."""
GAPS_MAX = 3
"""Behind a message of so many frames, or more, the next one waits for as many gaps: the more streams run, the more
there is to gather, and the less does it matter when each comes."""
CREDIT_MAX = 2**40
"""More is garbage."""
_FIELD_TAG = b"\x0a"
"""Of `frames` in either message, which has the number 1 and is length-delimited."""


_Frame = TypeVar("_Frame", pb.OriginFrame, pb.AnswerFrame)


class Outgoing(Generic[_Frame]):
    """What one side still has to say of one forward: words, which go out as soon as they can, and bytes, for which
    there must be credit."""

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

    def __init__(self, outbox: Outbox[_Frame], forward: int, credit: int) -> None:
        self.forward = forward
        self.credit = credit
        self.unsent_bytes = 0
        self.has_begun = False
        """Something of it has gone out."""
        self._outbox: Outbox[_Frame] = outbox
        self._frame: _Frame | None = None
        self._bytes: deque[bytes | memoryview] = deque()
        self._last_word: Callable[[_Frame], None] | None = None
        self._is_queued = False
        self._room: tuple[int, asyncio.Future[None]] | None = None

    @property
    def frame(self) -> _Frame:
        """The next one, for a word to be written in."""
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
        """To be said once all bytes have gone."""
        self._last_word = last_word
        if not self._bytes:
            self._queue()

    def give_credit(self, size: int) -> None:
        """Raises WireError for more than there can be any use for."""
        if self.credit + size > CREDIT_MAX:
            raise WireError("more credit than anybody can use")
        self.credit += size
        if self._bytes:
            self._queue()

    def drop(self) -> None:
        """Nothing of what was to be said is said any more."""
        self._frame = self._last_word = None
        self._bytes.clear()
        self.unsent_bytes = 0
        self._tell_of_room()

    async def until_unsent(self, most: int) -> None:
        """Until no more than this is left. One at a time waits."""
        assert self._room is None, "a forward has one writer"
        if self.unsent_bytes <= most:
            return
        self._room = (most, asyncio.get_running_loop().create_future())
        try:
            await self._room[1]
        finally:
            self._room = None

    # The outbox's side

    def next_frame(self, share: int) -> bytes:
        """What is said next, with no more than `share` bytes; empty when there is nothing left to say."""
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
        """What has gathered, up to so much."""
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
        if self._room is not None and self.unsent_bytes <= self._room[0] and not self._room[1].done():
            self._room[1].set_result(None)


class Outbox(Generic[_Frame]):
    """Of one stream. Whoever has something to say stands in line, and says a batch's share of it in its turn."""

    def __init__(self, make_frame: Callable[[], _Frame], payload: str, *, gap_ns: int = 0) -> None:
        """`payload` is the field that a frame's bytes go into. A message goes out no sooner than `gap_ns` for each
        frame of the one before, up to `GAPS_MAX`, unless that one could not hold all that there was to say."""
        self.make_frame: Callable[[], _Frame] = make_frame
        self.payload = payload
        self._gap_s = gap_ns / 1e9
        self._line: deque[Outgoing[_Frame]] = deque()
        self._waiter = Waiter()
        self._prologue = b""
        self._is_closed = False
        self._frames = 0
        """In the last message."""

    @property
    def is_empty(self) -> bool:
        return not self._line and not self._prologue

    @property
    def pause_s(self) -> float:
        """From the last message to the next one."""
        return 0.0 if self._line else self._gap_s * min(self._frames, GAPS_MAX)

    def queue(self, outgoing: Outgoing[_Frame]) -> None:
        self._line.append(outgoing)
        self._waiter.wake()

    def say(self, message: bytes) -> None:
        """Of the stream itself: the fields of a message that are no frames."""
        self._prologue += message
        self._waiter.wake()

    def close(self) -> None:
        """Nothing more is put in: who sends is done with the last of it."""
        self._is_closed = True
        self._waiter.wake()

    def next_message(self) -> bytes:
        """Everybody's turn, as long as there is room. Empty when nobody has anything to say."""
        parts = [self._prologue]
        size, self._prologue, self._frames = 0, b"", 0
        line = self._line
        share = max(TURN_BYTES_MIN, BATCH_BYTES_MAX // max(len(line), 1))
        for _ in range(len(line)):  # whoever has more to say goes to the back of the line
            frame = line.popleft().next_frame(share)
            if frame:
                parts += (_FIELD_TAG, _varint(len(frame)), frame)
                size += len(frame)
                self._frames += 1
                if size >= BATCH_BYTES_MAX:
                    break
        return b"".join(parts)

    async def send_all(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Until it is closed and empty. Whatever is put in while a message is being written goes out with the next: a
        message costs far more than the frames in it, and where many streams run, every turn of the loop has some."""
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
    """Raises WireError for what is none, or too large."""
    if len(raw) > MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {len(raw)} bytes, of {MESSAGE_BYTES_MAX} at most")
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise WireError("bytes that are no message") from None


def has_unknown_fields(message: Any, known: Collection[str]) -> bool:
    """Does it say anything beside these fields? Costs a copy: for what is rare."""
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
