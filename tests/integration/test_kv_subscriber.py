"""Subscriber of an engine's KV events, and a publisher that loses messages, restarts, lies and floods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.events import CacheChange, ChangeKind, UnheardReason
from gateway.features.kv_events import subscriber
from gateway.features.kv_events.subscriber import EventsAddress, KvEventsSubscriber
from loadgen.engine.blocks import NamesChange
from loadgen.engine.kv_publisher import KvEventPublisher, batch_bytes
from mesh.clock import Clock
from mesh.supervisor import Backoff
from tests.support.core import MS, SECOND
from tests.support.gateways import until

QUICK = Backoff(min_ns=MS, max_ns=20 * MS)
BOUNDS = KvEventsConfig(rate_max_bytes=100_000, message_max_bytes=200_000, pause_ns=3_600 * SECOND)


class HeardCore:
    """Core that notes what it is told."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        """Blocks in the order in which they were told, since the last beginning."""
        self.begun = 0
        self.cleared = 0
        self.unheard: list[UnheardReason] = []
        self._hears = False

    def tell(self, changes: tuple[CacheChange, ...], *, is_first: bool) -> None:
        if is_first:
            self.begun += 1
            self.blocks.clear()
            self._hears = True
        for change in changes:
            if change.kind is ChangeKind.CLEARED:
                self.cleared += 1
            else:
                self.blocks.append(int.from_bytes(change.blocks, "big"))

    def unhear(self, reason: UnheardReason) -> None:
        self.unheard.append(reason)
        self._hears = False

    def hears(self) -> bool:
        return self._hears

    def drop(self) -> None:
        """Forget the replica, as after a change of its description."""
        self._hears = False


def payload(block: int) -> bytes:
    return batch_bytes(0.0, [NamesChange(True, block.to_bytes(8, "big"))], 1)


class Pair:
    """A publisher, and a subscriber that follows it."""

    def __init__(self, publisher: KvEventPublisher, core: HeardCore, subscriber: KvEventsSubscriber) -> None:
        self.publisher = publisher
        self.core = core
        self.subscriber = subscriber

    async def hears(self, *blocks: int) -> None:
        await until(lambda: self.core.blocks == list(blocks))

    async def follows(self) -> None:
        await until(lambda: self.subscriber.is_connected and self.publisher.subscribers == 1)

    async def restart(self, *, keeps: bool) -> None:
        """Start the publisher again at its ports. `keeps`: only its connections were lost."""
        publisher = self.publisher
        await publisher.stop()
        if not keeps:
            publisher.next = 0
            publisher.forget()
        await publisher.start(*publisher.ports)


class NotedBackoff(Backoff, frozen=True):
    """Short pauses that are noted."""

    failures: list[int] = msgspec.field(default_factory=list)

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        self.failures.append(failures)
        return 0.001


class EventfulBackoff(Backoff, frozen=True, kw_only=True):
    """Short pauses in each of which something happens."""

    happens: Callable[[], None]

    def pause_s(self, failures: int, rng: random.Random | None = None) -> float:
        self.happens()
        return 0.001


async def read_in_silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


class ForwardClock(Clock):
    """Clock that can be put forward."""

    ahead_ns = 0

    def now_ns(self) -> int:
        return Clock.now_ns() + self.ahead_ns


def subscriber_of(
    core: HeardCore,
    address: EventsAddress,
    bounds: KvEventsConfig = BOUNDS,
    backoff: Backoff = QUICK,
    clock: Clock | None = None,
) -> KvEventsSubscriber:
    return KvEventsSubscriber(
        "r0",
        address,
        core,
        bounds=lambda: bounds,
        clock=clock or Clock(),
        log=structlog.get_logger(),
        rng=random.Random(1),
        backoff=backoff,
    )


def noted_requests(publisher: KvEventPublisher) -> list[int]:
    """Numbers from which on messages are asked for, from now on."""
    whole, asked = publisher.repetition, []

    def noted(first: int) -> Iterator[list[bytes]]:
        asked.append(first)
        return whole(first)

    publisher.repetition = noted  # type: ignore[method-assign]
    return asked


@asynccontextmanager
async def pair(
    *,
    repeats: bool = True,
    kept: int = 100,
    before: tuple[int, ...] = (),
    bounds: KvEventsConfig = BOUNDS,
    backoff: Backoff = QUICK,
    clock: Clock | None = None,
) -> AsyncIterator[Pair]:
    publisher = KvEventPublisher("127.0.0.1", 1, 0, b"kv@here", kept)
    for block in before:
        publisher.publish_payload(payload(block))
    await publisher.start(0, 0)
    port, replay_port = publisher.ports
    core = HeardCore()
    address = EventsAddress("127.0.0.1", port, replay_port if repeats else None)
    subscriber = subscriber_of(core, address, bounds, backoff, clock)
    made = Pair(publisher, core, subscriber)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(subscriber.run())
            await made.follows()
            yield made
            task.cancel()
    finally:
        await publisher.stop()


async def test_it_hears_what_was_published_before_and_since() -> None:
    async with pair(before=(1, 2)) as both:
        await both.hears(1, 2)
        both.publisher.publish_payload(payload(3))
        await both.hears(1, 2, 3)
        assert (both.core.begun, both.subscriber.repeated, both.core.unheard) == (1, 2, [])


async def test_lost_messages_are_repeated_in_their_order() -> None:
    async with pair() as both:
        both.publisher.publish_payload(payload(1))
        both.publisher.lose(payload(2))
        both.publisher.lose(payload(3))
        both.publisher.publish_payload(payload(4))
        await both.hears(1, 2, 3, 4)
        assert both.core.unheard == []


@pytest.mark.parametrize("repeats", [True, False])
async def test_messages_that_are_lost_for_good_void_what_was_told(repeats: bool) -> None:
    async with pair(repeats=repeats) as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        both.publisher.lose(payload(2))
        both.publisher.forget()
        both.publisher.publish_payload(payload(3))
        await both.hears(3)
        assert (both.core.unheard, both.core.cleared) == ([UnheardReason.GAP], 0)


async def test_a_gap_older_than_what_is_kept_is_lost() -> None:
    async with pair(kept=2) as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        for block in (2, 3):
            both.publisher.lose(payload(block))
        both.publisher.publish_payload(payload(4))
        await both.hears(3, 4)
        assert both.core.unheard == [UnheardReason.GAP]


@pytest.mark.parametrize("repeats", [True, False])
async def test_a_lost_connection_loses_nothing(repeats: bool) -> None:
    async with pair(repeats=repeats) as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        await both.restart(keeps=True)
        await both.follows()
        both.publisher.publish_payload(payload(2))
        await both.hears(1, 2)
        assert (both.core.begun, both.core.cleared) == (1, 0)


async def test_what_happened_meanwhile_is_repeated() -> None:
    async with pair() as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        await both.publisher.stop()
        both.publisher.publish_payload(payload(2))
        await both.publisher.start(*both.publisher.ports)
        await both.hears(1, 2)
        assert both.core.begun == 1


@pytest.mark.parametrize("published", [(), (7,), (7, 8, 9)])
async def test_another_process_has_an_empty_cache(published: tuple[int, ...]) -> None:
    """The new one has published less than the one before, as much, or more."""
    async with pair() as both:
        for block in (1, 2):
            both.publisher.publish_payload(payload(block))
        await both.hears(1, 2)
        await both.publisher.stop()
        both.publisher.next = 0
        both.publisher.forget()
        for block in published:
            both.publisher.publish_payload(payload(block))
        await both.publisher.start(*both.publisher.ports)
        await both.hears(*published)
        assert (both.core.cleared, both.core.unheard) == (1, [])


async def test_another_process_that_repeats_nothing_is_known_by_its_numbers() -> None:
    async with pair(repeats=False) as both:
        for block in (1, 2):
            both.publisher.publish_payload(payload(block))
        await both.hears(1, 2)
        await both.restart(keeps=False)
        await both.follows()
        both.publisher.publish_payload(payload(7))
        await both.hears(7)
        assert (both.core.cleared, both.core.unheard) == (1, [])


async def test_an_engine_that_restarts_before_its_first_message_is_heard() -> None:
    """Each of the two processes begins before any traffic."""
    async with pair() as both:
        await both.restart(keeps=False)
        await both.follows()
        both.publisher.publish_payload(payload(7))
        await both.hears(7)
        assert both.core.unheard == []


async def test_nothing_begins_before_the_engine_has_repeated_its_messages() -> None:
    async with pair(before=(1,)) as both:
        await both.hears(1)
        address = both.subscriber.address
        silent = await asyncio.start_server(read_in_silence, "127.0.0.1", 0)
        core = HeardCore()
        port = silent.sockets[0].getsockname()[1]
        deaf = subscriber_of(core, EventsAddress(address.host, address.port, port))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(deaf.run())
            await until(lambda: both.publisher.subscribers == 2)
            task.cancel()
        silent.close()
        await silent.wait_closed()
        assert core.begun == 0


async def test_losses_in_a_row_are_paced_and_logged_once() -> None:
    backoff = NotedBackoff(max_ns=3_600 * SECOND)
    with capture_logs() as logged:
        async with pair(backoff=backoff) as both:
            asked = noted_requests(both.publisher)
            both.publisher.publish_payload(payload(1))
            await both.hears(1)
            for block in (2, 4, 6):
                both.publisher.lose(payload(block))
                both.publisher.forget()
                both.publisher.publish_payload(payload(block + 1))
                await both.hears(block + 1)
                await until(lambda: asked[-1] == both.publisher.next - 1)
            assert both.core.unheard == [UnheardReason.GAP] * 3
    assert backoff.failures == [1, 2, 3]
    assert [each["event"] for each in logged].count("kv_events_lost") == 1


async def test_what_a_repetition_lacks_is_asked_for_again() -> None:
    """Each answer brings three messages, lacks the next two, and has all others and the end."""
    async with pair(before=(1, 2)) as both:
        await both.hears(1, 2)
        whole = both.publisher.repetition

        def with_a_gap(first: int) -> Iterator[list[bytes]]:
            messages = list(whole(first))
            yield from messages[:3]
            yield from messages[3:][2:] or messages[-1:]

        both.publisher.repetition = with_a_gap  # type: ignore[method-assign]
        for block in range(3, 12):
            both.publisher.lose(payload(block))
        both.publisher.publish_payload(payload(12))
        await both.hears(*range(1, 13))
        assert (both.core.begun, both.core.unheard) == (1, [])


async def test_a_repetition_without_its_end_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer brings three messages, and lacks the others and the end."""
    monkeypatch.setattr(subscriber, "CONNECT_S", 0.5)
    async with pair(before=(1, 2)) as both:
        await both.hears(1, 2)
        whole = both.publisher.repetition

        def cut_short(first: int) -> Iterator[list[bytes]]:
            return islice(whole(first), 3)

        both.publisher.repetition = cut_short  # type: ignore[method-assign]
        for block in range(3, 8):
            both.publisher.lose(payload(block))
        both.publisher.publish_payload(payload(8))
        await both.hears(*range(1, 9))
        assert (both.core.begun, both.core.unheard) == (1, [])


async def test_more_than_the_rate_is_repeated_slowly_and_is_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "_RATE_OVER_S", 1)
    blocks = tuple(range(1500))
    bounds = msgspec.structs.replace(BOUNDS, rate_max_bytes=2**20)
    async with pair(before=blocks, kept=len(blocks), bounds=bounds) as both:
        await both.hears(*blocks)
        both.publisher.publish_payload(payload(len(blocks)))
        await both.hears(*blocks, len(blocks))
        assert (both.core.begun, both.core.unheard) == (1, [])


@pytest.mark.parametrize(("further", "unheard"), [(0, []), (3_000, [UnheardReason.FLOOD])])
async def test_what_waits_while_messages_are_repeated_is_no_flood(
    monkeypatch: pytest.MonkeyPatch, further: int, unheard: list[UnheardReason]
) -> None:
    """Each message counts for 1,500 bytes: the repetition takes two seconds, and leaves half of what may come at once.
    What comes in more than one second waits meanwhile; what comes by itself later is a flood."""
    monkeypatch.setattr(subscriber, "_RATE_OVER_S", 1)
    async with pair(kept=1_000, bounds=msgspec.structs.replace(BOUNDS, rate_max_bytes=2**18)) as both:
        both.publisher.publish_payload(payload(0))
        await both.hears(0)
        whole = both.publisher.repetition

        def while_others_come(first: int) -> Iterator[list[bytes]]:
            both.publisher.repetition = whole  # type: ignore[method-assign]
            repeated = list(whole(first))
            for block in range(501, 701):
                both.publisher.publish_payload(payload(block))
            yield from repeated

        both.publisher.repetition = while_others_come  # type: ignore[method-assign]
        for block in range(1, 500):
            both.publisher.lose(payload(block))
        both.publisher.publish_payload(payload(500))
        await both.hears(*range(701))
        assert (both.core.begun, both.core.unheard) == (1, [])
        for block in range(701, 701 + further):
            both.publisher.publish_payload(payload(block))
        await until(lambda: both.core.unheard == unheard)


async def test_what_waits_during_a_pause_after_a_loss_is_no_flood() -> None:
    """Messages wait that take 18 seconds at the rate, of which ten may come at once; the pause takes 20."""
    clock = ForwardClock()

    def meanwhile() -> None:
        clock.ahead_ns += 20 * SECOND
        for block in range(4, 244):
            both.publisher.publish_payload(payload(block))

    bounds = msgspec.structs.replace(BOUNDS, rate_max_bytes=20_000)
    async with pair(repeats=False, bounds=bounds, backoff=EventfulBackoff(happens=meanwhile), clock=clock) as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        both.publisher.lose(payload(2))
        both.publisher.publish_payload(payload(3))
        await both.hears(*range(3, 244))
        assert both.core.unheard == [UnheardReason.GAP]


async def test_an_answer_that_ends_too_early_is_not_the_whole_history() -> None:
    """Each answer brings three messages and the end."""
    async with pair(before=(1,)) as both:
        await both.hears(1)
        whole = both.publisher.repetition

        def without_its_tail(first: int) -> Iterator[list[bytes]]:
            *messages, end = whole(first)
            yield from (*messages[:3], end)

        both.publisher.repetition = without_its_tail  # type: ignore[method-assign]
        both.core.drop()
        for block in range(2, 9):
            both.publisher.lose(payload(block))
        both.publisher.publish_payload(payload(9))
        await both.hears(*range(1, 10))
        assert (both.core.begun, both.core.unheard) == (2, [])


async def test_the_history_of_an_engine_that_goes_on_publishing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer brings a message more, so that no answer is empty."""
    monkeypatch.setattr(subscriber, "_ASKS_MAX", 4)
    async with pair() as both:
        whole = both.publisher.repetition

        def with_one_more(first: int) -> Iterator[list[bytes]]:
            both.publisher.lose(payload(both.publisher.next))
            yield from whole(first)

        both.publisher.repetition = with_one_more  # type: ignore[method-assign]
        await both.restart(keeps=True)
        await both.follows()
        await both.hears(*range(4))
        both.publisher.publish_payload(payload(4))
        await both.hears(*range(5))
        assert both.core.unheard == []


@pytest.mark.parametrize(
    ("bound", "most", "reason"),
    [
        ("_REPEATED_MAX", 500, UnheardReason.FLOOD),
        ("_REPEATED_MAX_BYTES", 50_000, UnheardReason.FLOOD),
        ("_ASKS_MAX", 4, UnheardReason.GAP),
    ],
)
async def test_a_repetition_without_end_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int, reason: UnheardReason
) -> None:
    """An answer brings messages for ever or, where answers are counted, one message and then a gap."""
    monkeypatch.setattr(subscriber, bound, most)
    async with pair(bounds=msgspec.structs.replace(BOUNDS, rate_max_bytes=2**26)) as both:
        asked = []

        def endless(first: int) -> Iterator[list[bytes]]:
            asked.append(first)
            each = count(first) if bound != "_ASKS_MAX" else (first, first + 1, first + 3)
            for number in each:
                yield [b"", b"", number.to_bytes(8, "big"), payload(number)]

        both.publisher.repetition = endless  # type: ignore[method-assign]
        await both.restart(keeps=True)
        await until(lambda: both.core.unheard == [reason])
        assert both.subscriber.repeated <= 1_000
        assert asked == (list(range(4)) if bound == "_ASKS_MAX" else [0])


async def test_more_than_is_ever_repeated_is_not_asked_for() -> None:
    async with pair() as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        asked = noted_requests(both.publisher)
        both.publisher.forget()
        both.publisher.next = last = 2**32
        both.publisher.publish_payload(payload(2))
        await both.hears(2)
        await until(lambda: asked == [0, last])
        assert both.core.unheard == [UnheardReason.GAP]


async def test_another_process_behind_the_address_is_not_taken_for_the_rest_of_the_history() -> None:
    """The second process answers from the second request on, and has published more than the first."""
    async with pair(before=(1, 2, 3, 4)) as both:
        await both.hears(1, 2, 3, 4)
        whole = both.publisher.repetition

        def of_two_processes(first: int) -> Iterator[list[bytes]]:
            messages = list(whole(first))
            both.publisher.repetition = whole  # type: ignore[method-assign]
            both.publisher.next = 0
            both.publisher.forget()
            for block in range(11, 18):
                both.publisher.lose(payload(block))
            yield from (*messages[:2], *messages[3:])

        both.publisher.repetition = of_two_processes  # type: ignore[method-assign]
        both.core.drop()
        both.publisher.publish_payload(payload(5))
        await both.hears(*range(11, 18))
        assert (both.core.cleared, both.core.unheard) == (1, [])


async def test_debt_is_paid_off_while_an_engine_is_not_listened_to() -> None:
    """The flood counts for three minutes at the rate; the pause takes an hour."""
    clock = ForwardClock()
    bounds = msgspec.structs.replace(BOUNDS, rate_max_bytes=1_000, pause_ns=MS)
    async with pair(bounds=bounds, clock=clock) as both:
        unhear = both.core.unhear

        def an_hour_later(reason: UnheardReason) -> None:
            unhear(reason)
            both.publisher.forget()
            clock.ahead_ns += 3_600 * SECOND

        both.core.unhear = an_hour_later  # type: ignore[method-assign]
        both.publisher.publish_payload(bytes(BOUNDS.message_max_bytes - 1_000))
        await until(lambda: both.core.unheard == [UnheardReason.FLOOD])
        await both.follows()
        both.publisher.publish_payload(payload(1))
        await both.hears(1)


async def test_many_small_messages_are_a_flood() -> None:
    async with pair(bounds=msgspec.structs.replace(BOUNDS, rate_max_bytes=20_000)) as both:
        for at in range(300):
            both.publisher.publish_payload(payload(at))
        await until(lambda: both.core.unheard == [UnheardReason.FLOOD])
        assert both.subscriber.bytes < 10 * 20_000


async def test_other_work_is_done_between_the_parts_of_a_batch() -> None:
    async with pair() as both:
        seen = []
        tell = both.core.tell

        def told(changes: tuple[CacheChange, ...], *, is_first: bool) -> None:
            tell(changes, is_first=is_first)
            asyncio.get_running_loop().call_soon(lambda: seen.append(len(both.core.blocks)))

        both.core.tell = told  # type: ignore[method-assign]
        changes = [NamesChange(False, at.to_bytes(8, "big")) for at in range(600)]
        both.publisher.publish_payload(batch_bytes(0.0, changes, 1))
        await both.hears(*range(600))
        await until(lambda: len(seen) == 3)
        assert seen == [256, 512, 600]


async def test_a_core_that_forgot_the_replica_is_told_all_again() -> None:
    async with pair() as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        both.core.drop()
        both.publisher.publish_payload(payload(2))
        await both.hears(1, 2)
        assert both.core.begun == 2


def _flood(publisher: KvEventPublisher) -> None:
    for _ in range(12):
        publisher.publish_payload(msgspec.msgpack.encode([0.0, [{"type": "New", "text": "x" * 100_000}]]))


def _huge(publisher: KvEventPublisher) -> None:
    publisher.publish_payload(bytes(BOUNDS.message_max_bytes + 1))


def _garbage(publisher: KvEventPublisher) -> None:
    publisher.publish_payload(b"\xc1")


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [(_flood, UnheardReason.FLOOD), (_huge, UnheardReason.FLOOD), (_garbage, UnheardReason.MALFORMED)],
)
async def test_an_engine_that_misbehaves_is_cut_off(
    misbehave: Callable[[KvEventPublisher], None], reason: UnheardReason
) -> None:
    async with pair() as both:
        both.publisher.publish_payload(payload(1))
        await both.hears(1)
        misbehave(both.publisher)
        await until(lambda: both.core.unheard == [reason])
        await until(lambda: both.publisher.subscribers == 0)
        assert both.subscriber.fault
        assert not both.subscriber.is_connected


async def test_after_its_pause_an_engine_is_followed_again() -> None:
    async with pair(bounds=msgspec.structs.replace(BOUNDS, pause_ns=MS)) as both:
        _garbage(both.publisher)
        await until(lambda: both.core.unheard.count(UnheardReason.MALFORMED) > 1)
        both.publisher.forget()
        await both.follows()
        both.publisher.publish_payload(payload(2))
        await until(lambda: both.core.blocks[-1:] == [2])
