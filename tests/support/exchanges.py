"""Both ends of an exchange without gRPC between them: each end reads in its next step what the other has written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from gateway.core.vocabulary import ReplicaId
from gateway.peers import codec
from gateway.peers.exchange.batches import FrameBatcher, Outgoing
from gateway.peers.exchange.origin_stream import OriginForward, OriginStream
from gateway.peers.exchange.stream_selector import StreamSelector
from gateway.peers.forward_messages import ForwardMessage
from gateway.request.legs import LegFailure, LegHead, RanAt
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.core import EU

WINDOW = 256 * 1024
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))


TURNS_MAX = 100_000
"""Turns of the event loop after which a condition counts as never false."""


async def turning_while(holds: Callable[[], object]) -> None:
    """Let the loop turn while the condition holds, for changes that need nothing but turns."""
    for _ in range(TURNS_MAX):
        if not holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


class Turns:
    """Counts the turns of the event loop while it is entered."""

    def __init__(self) -> None:
        self.now = 0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._tick()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def _tick(self) -> None:
        self.now += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)


class Pipe:
    """One direction. Writing a message wakes its reader at once."""

    def __init__(self) -> None:
        self.messages: deque[bytes | None] = deque()
        self.written: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None

    async def write(self, message: bytes) -> None:
        self.put(message)

    def put(self, message: bytes | None) -> None:
        """Append a message; None ends the pipe."""
        if message is not None:
            self.written.append(message)
        self.messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> bytes | None:
        while not self.messages:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.messages.popleft()


class PipedCall:
    """Stand-in for the call that gRPC gives an origin, with the peer's end in a test's hands."""

    def __init__(self) -> None:
        self.to_peer = Pipe()
        self.from_peer = Pipe()
        self.is_cancelled = False
        self.is_half_closed = False

    async def write(self, message: bytes) -> None:
        await self.to_peer.write(message)

    async def read(self) -> Any:
        return await self.from_peer.read()

    async def done_writing(self) -> None:
        self.is_half_closed = True
        self.from_peer.put(None)

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True


class Peer:
    """The called end, as far as a test needs it: it sends the answers that it is given, fairly and in batches."""

    def __init__(self, call: PipedCall) -> None:
        self.outbox = FrameBatcher(pb.AnswerFrame, "data")
        self.requests: dict[int, bytes] = {}
        self.cancelled: list[int] = []
        self.out: dict[int, Outgoing[pb.AnswerFrame]] = {}
        self._call = call

    async def read(self) -> None:
        while (raw := await self._call.to_peer.read()) is not None:
            for frame in pb.ExchangeRequest.FromString(raw).frames:
                if frame.request_bytes:
                    self.out[frame.forward] = Outgoing(self.outbox, frame.forward, 0)
                if frame.request:
                    self.requests[frame.forward] = self.requests.get(frame.forward, b"") + frame.request
                if frame.credit:
                    self.out[frame.forward].give_credit(frame.credit)
                if frame.cancel:
                    self.cancelled.append(frame.forward)

    def says(self, **fields: Any) -> None:
        """Send one frame, at once and unchanged."""
        self._call.from_peer.put(pb.ExchangeResponse(frames=[pb.AnswerFrame(**fields)]).SerializeToString())

    def begins(self, forward: int) -> None:
        frame = self.out[forward].frame
        frame.accepted.SetInParent()
        codec.write_head(frame.head, HEAD)

    def ends(self, forward: int) -> None:
        self.out[forward].end_with(lambda frame: frame.ended.CopyFrom(pb.Ended(outcome="completed")))


class Taken:
    """Taker of one forward's words. After a break, or once it has left, nothing more may be handed on."""

    def __init__(self) -> None:
        self.words: list[ForwardMessage] = []
        """Words in order; bytes count as the word `data`."""
        self.failure: LegFailure | None = None
        self.forward: OriginForward
        self.pauses_after: int | None = None
        """Number of words after which the taker has no room, and again after each that it takes then."""
        self.has_left = False

    @property
    def kinds(self) -> list[str | None]:
        return [word.kind for word in self.words]

    @property
    def data(self) -> bytes:
        return b"".join(word.said for word in self.words if word.kind == "data")

    def leave(self) -> None:
        self.has_left = True
        self.forward.leave()

    def on_word(self, word: ForwardMessage) -> None:
        assert not self.has_left
        assert self.failure is None
        self.words.append(word)
        if self.pauses_after is not None and len(self.words) >= self.pauses_after:
            self.forward.pause()

    def on_data(self, data: bytes) -> None:
        self.on_word(ForwardMessage("data", data))

    def on_broken(self, failure: LegFailure) -> None:
        assert not self.has_left
        assert self.failure is None
        self.failure = failure


def opened(stream: OriginStream | StreamSelector, request: bytes) -> Taken:
    """Open a forward. Raises LegFailure."""
    taken = Taken()
    taken.forward = stream.open(request, taken)
    return taken


@asynccontextmanager
async def piped(
    window_bytes: int = WINDOW, on_ignored: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[OriginStream, Peer, PipedCall]]:
    call = PipedCall()
    stream = OriginStream(
        call,  # type: ignore[arg-type]
        Clock(),
        window_bytes=window_bytes,
        gap_ns=0,
        on_ignored=on_ignored,
        is_shortage=lambda _: False,
    )
    peer = Peer(call)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(each) for each in (stream.run(), peer.read(), peer.outbox.send_all(call.from_peer.write))
        ]
        yield stream, peer, call
        for task in running:
            task.cancel()


async def begun(stream: OriginStream, peer: Peer, count: int, request: bytes = b"request") -> list[Taken]:
    """Open so many forwards, and have the peer accept each and send its head."""
    forwards = [opened(stream, request) for _ in range(count)]
    await turning_while(lambda: len(peer.requests) < count)
    for number in range(1, count + 1):
        peer.begins(number)
    await turning_while(lambda: any(len(each.words) < 2 for each in forwards))
    for each in forwards:
        assert each.kinds == ["accepted", "head"]
        each.words.clear()
    return forwards
