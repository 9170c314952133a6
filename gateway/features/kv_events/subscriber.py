"""Subscriber of one engine's KV events: connects, notices lost messages by their numbers, has them repeated, and begins
anew where that is impossible. An engine that sends too much, or nonsense, is cut off for a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Final, Never, Protocol

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.events import CacheChange, ChangeKind, UnheardReason
from gateway.features.kv_events.wire import BatchPart, EventFault, read_batch
from gateway.http1.vanished import give_up_vanished_engine
from mesh.clock import Clock
from mesh.supervisor import Backoff
from mesh.values import SECOND_NS
from mesh.zmtp import SocketType, ZmtpFault, message_bytes, read_message, shake_hands, subscription_bytes

CONNECT_S: Final = 5.0
"""Time for a connection to open, and for each message of a repetition to come."""
_ASKS_MAX: Final = 128
"""Most requests for one repetition. An answer of vLLM brings 1,000 messages at least, or all."""
_REPEATED_MAX: Final = 100_000
_REPEATED_MAX_BYTES: Final = 2**30
"""Most messages, and bytes, of one repetition."""
_RATE_OVER_S: Final = 10
_MESSAGE_COST: Final = 1_024
_EVENT_COST: Final = 256
_HASH_COST: Final = 64
"""Bytes by which each message, event and hash counts against the rate, beside its own: each takes time to handle."""
_NUMBER_BYTES: Final = 8
_END: Final = 2**64 - 1
"""Number of the message that ends a repetition."""


class EventsAddress(Struct, frozen=True):
    """Address at which an engine, or one rank of it, publishes."""

    host: str
    port: int
    replay_port: int | None = None
    """Port at which the engine repeats messages; None: it repeats none."""
    engine_url: str = ""
    """URL at which the engine serves; at another one is another engine."""


class _CutOff(Exception):
    """The engine is not to be listened to for a time."""

    def __init__(self, reason: UnheardReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class _Batch(Struct, frozen=True):
    number: int
    payload: bytes

    @property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.payload, digest_size=16).digest()


class KvEventsCore(Protocol):
    """Core of the gateway, as far as one engine's events concern it."""

    def tell(self, changes: tuple[CacheChange, ...], *, is_first: bool) -> None:
        """Tell of changes. `is_first`: what was told before is void."""

    def unhear(self, reason: UnheardReason) -> None:
        """Tell that the engine's word counts no longer."""

    def hears(self) -> bool:
        """Return true if the engine's word counts."""


class KvEventsSubscriber:
    """Subscription to one engine."""

    def __init__(
        self,
        replica_id: str,
        address: EventsAddress,
        core: KvEventsCore,
        *,
        bounds: Callable[[], KvEventsConfig],
        clock: Clock,
        log: FilteringBoundLogger,
        rng: random.Random,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        self.address = address
        self._core = core
        self._bounds = bounds
        self._clock = clock
        self._log = log.bind(replica=replica_id)
        self._rng = rng
        self._backoff = backoff
        self._next: int | None = None
        """Number of the next message; None: that of the one which comes."""
        self._last_digest = b""
        """Digest of the last message, by which another process of the engine is told apart."""
        self._is_unsure = False
        """The connection is a new one, and the engine can repeat nothing: the next message tells whether any were
        lost."""
        self._debt_ns = clock.now_ns()
        self._debt_bytes = 0.0
        """Bytes that the engine has sent beyond its rate."""
        self._behind_until_ns = 0
        """Time until which messages may come at once that the engine sent while they were not read."""
        self._losses = 0
        """Losses in a row."""
        self._lost_ns = 0
        self.is_connected = False
        self.bytes = 0
        self.repeated = 0
        """Messages that the engine repeated."""
        self.fault = ""
        """Reason why the engine is not listened to at present."""

    async def run(self) -> Never:
        """Listen until cancelled."""
        failures = 0
        while True:
            began_ns = self._clock.now_ns()
            try:
                await self._follow()
            except _CutOff as cut:
                self._next = None  # the core is told all anew
                self._core.unhear(cut.reason)
                self._log.warning("kv_events_cut_off", reason=cut.reason, detail=str(cut))
                self.fault = str(cut)
                await asyncio.sleep(self._bounds().pause_ns / SECOND_NS)
                continue
            except (OSError, IncompleteReadError, ZmtpFault) as error:
                self._lost(str(error) or type(error).__name__)
            failures = self._backoff.failures_in_a_row(failures, self._clock.now_ns() - began_ns)
            await asyncio.sleep(self._backoff.pause_s(failures, self._rng))

    def _lost(self, detail: str) -> None:
        """Log that there is no connection, once per reason."""
        if detail != self.fault:
            self._log.warning("kv_events_connection_lost", detail=detail)
        self.fault = detail

    async def _follow(self) -> None:
        """Follow the engine over one connection, until that breaks."""
        async with self._connected(SocketType.SUB, self.address.port) as (reader, writer):
            writer.write(subscription_bytes())
            self._behind_until_ns = self._clock.now_ns()
            await self._catch_up()
            self._log.info("kv_events_followed", next=self._next)
            self.is_connected, self.fault = True, ""
            try:
                while True:
                    batch = _live(await self._read(reader))
                    self._check_rate()
                    await self._take(batch)
            finally:
                self.is_connected = False

    # Numbers

    async def _catch_up(self) -> None:
        """Learn what happened while there was no connection. Where no message has ever come, none tells one process of
        the engine from another, and nothing that was told is void."""
        if not self._next or not self._core.hears():
            await self._start_over()
        elif self.address.replay_port is None:
            self._is_unsure = True
        else:
            await self._resume(self._next)

    async def _resume(self, due: int) -> None:
        """Have what was missed repeated, from the last message heard on: if the engine has another one under its
        number, or none, another process answers, whose cache was empty when it began."""
        is_same = has_lost = False
        async with aclosing(self._repeated(due - 1)) as batches:
            async for batch in batches:
                if not is_same and batch.number < due:
                    if batch.digest != self._last_digest:
                        break
                    is_same = True
                elif not is_same or not await self._apply_next(batch):
                    has_lost = True
                    break
        if has_lost:
            await self._lose()
        elif not is_same:
            self._log.info("kv_events_engine_restarted")
            await self._start_over(CacheChange(ChangeKind.CLEARED))

    async def _take(self, batch: _Batch) -> None:
        """Take in a message that the engine has just sent."""
        if self._is_unsure and batch.number < (self._next or 0):
            self._log.info("kv_events_engine_restarted")
            self._begin(CacheChange(ChangeKind.CLEARED))
        self._is_unsure = False
        if not self._core.hears():
            await self._start_over()
        if self._next is not None and self._next < batch.number:
            await self._fill(self._next, batch.number)
        if self._next is None or self._next < batch.number:
            self._next = batch.number
        await self._apply_next(batch)

    async def _fill(self, first: int, before: int) -> None:
        """Have the messages repeated that are missing before this one. If the engine has lost any, or they are too
        many, begin anew."""
        if self.address.replay_port is not None and before - first <= _REPEATED_MAX:
            async with aclosing(self._repeated(first)) as batches:
                async for batch in batches:
                    if batch.number >= before or not await self._apply_next(batch):
                        break
        if self._next != before:
            await self._lose()

    async def _lose(self) -> None:
        """Give up what is known, since messages are lost for good, and begin anew after a pause that grows with the
        losses in a row. The first of them is logged."""
        self._core.unhear(UnheardReason.GAP)
        now_ns = self._clock.now_ns()
        self._losses, self._lost_ns = self._backoff.failures_in_a_row(self._losses, now_ns - self._lost_ns), now_ns
        if self._losses == 1:
            self._log.warning("kv_events_lost", next=self._next)
        self._next = None
        with self._away():
            await asyncio.sleep(self._backoff.pause_s(self._losses, self._rng))
        await self._start_over()

    async def _start_over(self, *changes: CacheChange) -> None:
        """Begin anew, with what the engine can repeat, once it has answered."""
        if self.address.replay_port is None:
            self._begin(*changes)
            return
        has_begun = False
        async with aclosing(self._repeated(0)) as batches:
            async for batch in batches:
                if not has_begun or self._next != batch.number:
                    self._begin(*(() if has_begun else changes))
                has_begun, self._next = True, batch.number
                await self._apply_next(batch)
        if not has_begun:
            self._begin(*changes)
        self._next = self._next or 0

    def _begin(self, *changes: CacheChange) -> None:
        self._next = None
        self._core.tell(changes, is_first=True)

    async def _apply_next(self, batch: _Batch) -> bool:
        """Tell the core of a message, if it is the next one, in parts between which other work is done."""
        if batch.number != self._next:
            return False
        try:
            for part in read_batch(batch.payload):
                self._tell(part)
                await asyncio.sleep(0)
        except EventFault as fault:
            raise _CutOff(UnheardReason.MALFORMED, str(fault)) from None
        self._next, self._last_digest = batch.number + 1, batch.digest
        return True

    def _tell(self, part: BatchPart) -> None:
        self._charge(part.events * _EVENT_COST + part.hashes * _HASH_COST)
        if part.changes:
            self._core.tell(part.changes, is_first=False)
            if not self._core.hears():
                raise _CutOff(UnheardReason.BLOCKS, f"it told of more than {self._bounds().blocks_max:,} blocks")

    # Connections

    async def _repeated(self, first: int) -> AsyncGenerator[_Batch, None]:
        """Messages that the engine still has, from this number on. vLLM loses messages of a long repetition, and the
        mark of its end, that its queue has no room for (1,000, and what the network takes meanwhile): it is asked
        again until an answer brings no more. An engine that goes on publishing may bring more each time; if it lost
        some, its next message tells."""
        last: _Batch | None = None
        has_ended = False
        messages, bytes_before = 0, self.bytes
        with self._away():
            for _ in range(_ASKS_MAX):
                due, known = first, last
                has_ended = False
                try:
                    async with aclosing(self._answered(first, known)) as batches:
                        async for batch in batches:
                            if batch.number > due > first:
                                break
                            messages += 1
                            _check_repetition(messages, self.bytes - bytes_before)
                            self.repeated += 1
                            yield batch
                            due, last = batch.number + 1, batch
                        else:
                            has_ended = True
                except TimeoutError:
                    if last is known:
                        raise
                if last is known:
                    return
                first = due
        if not has_ended:
            raise _CutOff(UnheardReason.GAP, f"a repetition is not whole after {_ASKS_MAX} requests")

    async def _answered(self, first: int, known: _Batch | None) -> AsyncGenerator[_Batch, None]:
        """Messages of one answer to a request for those from this number on. `known`: the one before, which the same
        process of the engine sends again while it has it."""
        assert self.address.replay_port is not None, "the engine repeats messages"
        async with self._connected(SocketType.DEALER, self.address.replay_port) as (reader, writer):
            asked = first if known is None else known.number
            writer.write(message_bytes([b"", asked.to_bytes(_NUMBER_BYTES, "big")]))
            while True:
                await self._until_within_rate()
                async with asyncio.timeout(CONNECT_S):
                    parts = await self._read(reader)
                batch = _numbered(parts[1:])
                if known is not None and (batch.number <= known.number or batch.number == _END):
                    if batch != known:
                        raise ConnectionError("another process of the engine repeats its messages")
                elif batch.number == _END:
                    return
                else:
                    yield batch
                known = None

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Allow for what an engine within its rate sends while its messages are not read."""
        began_ns = self._clock.now_ns()
        left_ns = max(0, self._behind_until_ns - began_ns)
        try:
            yield
        finally:
            now_ns = self._clock.now_ns()
            self._behind_until_ns = now_ns + left_ns + (now_ns - began_ns)

    @asynccontextmanager
    async def _connected(self, own: SocketType, port: int) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(self.address.host, port)
        try:
            give_up_vanished_engine(writer.get_extra_info("socket"))
            async with asyncio.timeout(CONNECT_S):
                await shake_hands(reader, writer.write, own)
            yield reader, writer
        finally:
            writer.close()

    async def _read(self, reader: StreamReader) -> list[bytes]:
        """Read a message within the engine's bounds."""
        try:
            parts, size = await read_message(reader, self._bounds().message_max_bytes)
        except ZmtpFault as fault:
            raise _CutOff(UnheardReason.FLOOD, str(fault)) from None
        self.bytes += size
        self._charge(size + _MESSAGE_COST)
        return parts

    def _charge(self, cost: int) -> None:
        """Count bytes against the rate."""
        now_ns = self._clock.now_ns()
        paid = (now_ns - self._debt_ns) * self._bounds().rate_max_bytes / SECOND_NS
        self._debt_bytes, self._debt_ns = max(0.0, self._debt_bytes - paid) + cost, now_ns

    def _check_rate(self) -> None:
        """Cut the engine off if it sends faster than it may."""
        rate = self._bounds().rate_max_bytes
        behind_s = max(0, self._behind_until_ns - self._clock.now_ns()) / SECOND_NS
        if self._debt_bytes > rate * (_RATE_OVER_S + behind_s):
            raise _CutOff(UnheardReason.FLOOD, f"it sent more than {rate:,} bytes per second, with its messages' costs")

    async def _until_within_rate(self) -> None:
        """Wait until what was asked for keeps within the rate, with room for what the engine sends by itself: vLLM
        repeats all that it keeps, however much that is."""
        self._charge(0)
        rate = self._bounds().rate_max_bytes
        over_bytes = self._debt_bytes - rate * _RATE_OVER_S / 2
        if over_bytes > 0:
            await asyncio.sleep(over_bytes / rate)


def _check_repetition(messages: int, size: int) -> None:
    """Cut the engine off if its repetition has no end."""
    if messages > _REPEATED_MAX or size > _REPEATED_MAX_BYTES:
        raise _CutOff(
            UnheardReason.FLOOD,
            f"a repetition has more than {_REPEATED_MAX:,} messages, or {_REPEATED_MAX_BYTES:,} bytes",
        )


def _live(parts: list[bytes]) -> _Batch:
    """Message of a publisher: topic, number and batch."""
    if len(parts) != 3:
        raise _CutOff(UnheardReason.MALFORMED, f"a message has {len(parts)} parts in place of 3")
    return _numbered(parts)


def _numbered(parts: list[bytes]) -> _Batch:
    """Message with its number; the topic before it is missing in what older engines repeat."""
    if not 2 <= len(parts) <= 3 or len(parts[-2]) != _NUMBER_BYTES:
        raise _CutOff(UnheardReason.MALFORMED, "a message has no number")
    return _Batch(int.from_bytes(parts[-2], "big"), parts[-1])
