from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from itertools import count, pairwise

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.events import Event
from gateway.core.kernel.events import PeersObserved, TargetLost
from gateway.core.vocabulary import GatewayId, LoadReport, peer_target
from gateway.peers import codec
from gateway.peers.heartbeat_receiver import HeartbeatReceiver
from gateway.peers.heartbeats import (
    NO_ANSWER,
    REFUSED_BY_US,
    REFUSED_THERE,
    Heartbeats,
    HeartbeatTimeBudget,
    IdentityMismatch,
    ReadHeartbeat,
    RoundTrips,
    TakeIn,
    failure_of_ping,
    identity_fault,
    observe,
)
from gateway.peers.link import PeerLink
from mesh import silence
from mesh.channels import server_options
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.peer import FakePeer, SubscribeContext, serve_fake_peer
from tests.support.core import AP, EU, MS, SECOND, US, peer_spec
from tests.support.gateways import until
from tests.support.links import peer_link
from tests.support.listening import listening as listening_on
from tests.support.stalls import stall

SPEC = peer_spec("eu-1", EU)
REPORT = LoadReport(GatewayId("eu-1"), EU, 1, accepting=True, assignment_version=1, policy_digest="d")
HOUR = PeeringConfig(ping_interval_ns=10 * MS, reconnect_min_ns=3600 * SECOND, reconnect_max_ns=3600 * SECOND)
"""Peering in which a failed connection is not retried within any test."""
QUICK = PeeringConfig(ping_interval_ns=10 * MS, reconnect_min_ns=MS, reconnect_max_ns=10 * MS)


@asynccontextmanager
async def listening(peer: FakePeer, peering: PeeringConfig = QUICK) -> AsyncIterator[asyncio.Queue[Event]]:
    """Events that one peer's heartbeats submit, as they come."""
    async with heard(peer, peering) as (_, events, _):
        yield events


@asynccontextmanager
async def heard(
    peer: FakePeer, peering: PeeringConfig = QUICK, on_found: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[Heartbeats, asyncio.Queue[Event], PeerLink]]:
    events: asyncio.Queue[Event] = asyncio.Queue()
    link = peer_link(peer.config(SPEC), peering)
    heartbeats = make_heartbeats(link, events.put_nowait, on_found=on_found)
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(loop()) for loop in (heartbeats.measure, heartbeats.listen, heartbeats.watch)]
        yield heartbeats, events, link
        for loop in loops:
            loop.cancel()
    await link.close()


def make_heartbeats(
    link: PeerLink,
    submit: Callable[[Event], None],
    *readers: ReadHeartbeat,
    on_found: Callable[[], None] = lambda: None,
) -> Heartbeats:
    return Heartbeats(
        link,
        GatewayId("us-1"),
        US,
        submit=submit,
        clock=Clock(),
        rng=random.Random(1),
        on_refused=lambda: None,
        log=make_logger(LoggingConfig(), GatewayId("us-1")),
        on_found=on_found,
        readers=readers,
    )


@pytest.fixture
async def peer() -> AsyncIterator[FakePeer]:
    async with serve_fake_peer() as fake:
        yield fake


@pytest.fixture
async def aging_peer() -> AsyncIterator[FakePeer]:
    """Peer whose connections take no new calls soon after they are opened."""
    async with serve_fake_peer(options=server_options(replace(QUICK, connection_age_ns=20 * MS))) as fake:
        yield fake


async def stay(context: SubscribeContext, *reports: LoadReport) -> None:
    for report in reports:
        await context.write(codec.load_to_pb(report, age_ns=0))
    await asyncio.Event().wait()


async def test_a_heartbeat_becomes_an_observation_on_our_clock(peer: FakePeer) -> None:
    callers: list[str] = []

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        callers.append(f"{request.gateway_id} {request.place.region}/{request.place.jurisdiction}")
        await context.write(codec.load_to_pb(REPORT, age_ns=5 * SECOND))
        await asyncio.Event().wait()

    peer.subscribed = subscribed
    before_ns = Clock().now_ns()
    async with listening(peer) as events:
        event = await events.get()
    assert isinstance(event, PeersObserved)
    (observation,) = event.observations
    assert callers == ["us-1 us-east-1/US"]
    assert observation.report == REPORT
    assert before_ns <= observation.heard_ns <= Clock().now_ns()
    assert observation.rtt_ns > 0, "the round trip is known before the first heartbeat is taken in"
    assert observation.generated_ns == observation.heard_ns - 5 * SECOND - observation.rtt_ns // 2


async def test_nothing_is_heard_before_the_round_trip_is_known(
    peer: FakePeer, capsys: pytest.CaptureFixture[str]
) -> None:
    subscribed = asyncio.Event()

    async def on_subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        subscribed.set()
        await stay(context, REPORT)

    peer.subscribed = on_subscribed
    peer.answers_pings.clear()
    async with listening(peer, replace(QUICK, ping_timeout_ns=50 * MS)) as events:
        await until(lambda: peer.pings == 3)
        assert not subscribed.is_set()
        peer.answers_pings.set()
        event = await events.get()
        assert isinstance(event, PeersObserved)
        assert event.observations[0].rtt_ns > 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    failed = [line for line in lines if line["event"].startswith("peer_ping")]
    assert [(line["event"], line["level"], line["code"]) for line in failed] == [
        ("peer_ping_failed", "warning", "DEADLINE_EXCEEDED")
    ], "once, and not for each ping"


async def test_a_broken_stream_is_a_loss_at_once_and_then_heard_again(peer: FakePeer) -> None:
    again = count()

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        if next(again):
            await stay(context, replace(REPORT, sequence=2))
        await context.write(codec.load_to_pb(REPORT, age_ns=0))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    peer.subscribed = subscribed
    async with listening(peer) as events:
        seen = [await events.get() for _ in range(3)]
    assert isinstance(seen[0], PeersObserved)
    assert seen[1] == TargetLost(peer_target(SPEC.gateway_id), "UNAVAILABLE: going down")
    assert isinstance(seen[2], PeersObserved)
    assert seen[2].observations[0].report.sequence == 2


async def test_a_peer_that_dies_is_lost_and_found_again_on_its_old_address() -> None:
    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await stay(context, REPORT)

    async with serve_fake_peer() as first:
        first.subscribed = subscribed
        async with listening(first) as events:
            assert isinstance(await events.get(), PeersObserved)
            await first.stop()
            assert isinstance(await events.get(), TargetLost)
            async with serve_fake_peer(first.port) as second:
                second.subscribed = subscribed
                assert isinstance(await events.get(), PeersObserved)


async def test_a_peer_that_calls_is_heard_again_however_long_it_would_be_left_alone() -> None:
    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await stay(context, REPORT)

    async with serve_fake_peer() as first:
        first.subscribed = subscribed
        async with heard(first, HOUR) as (heartbeats, events, link):
            assert isinstance(await events.get(), PeersObserved)
            await first.stop()
            assert isinstance(await events.get(), TargetLost)
            await until(lambda: link.is_failing)
            async with serve_fake_peer(first.port) as second:
                second.subscribed = subscribed
                heartbeats.try_at_once()
                assert isinstance(await events.get(), PeersObserved)


async def test_a_peer_that_was_never_reached_is_heard_once_it_calls(unused_tcp_port: int) -> None:
    nothing = FakePeer()
    nothing.port = unused_tcp_port
    async with heard(nothing, replace(HOUR, ping_interval_ns=3600 * SECOND)) as (heartbeats, events, link):
        await until(lambda: link.is_failing)
        async with serve_fake_peer(unused_tcp_port) as peer:
            peer.subscribed = lambda _, context: stay(context, REPORT)
            heartbeats.try_at_once()
            assert isinstance(await events.get(), PeersObserved)


async def test_a_peer_that_is_found_has_all_others_tried_at_once() -> None:
    """A network that was lost as a whole comes back as a whole."""
    receiver, told = HeartbeatReceiver(lambda *_: None), []
    receiver.start(on_control=lambda *_: None, on_found=lambda: told.append("found"), on_lost=lambda: None)
    eu, ap = GatewayId("eu-1"), GatewayId("ap-1")
    patient = replace(HOUR, silence_max_ns=3600 * SECOND)  # the fakes send one report each, and no beats
    async with serve_fake_peer() as first, serve_fake_peer() as other:
        for fake in (first, other):
            fake.subscribed = lambda _, context: stay(context, REPORT)
        async with (
            heard(first, patient, partial(receiver.found, eu)) as (beats_eu, events_eu, link_eu),
            heard(other, patient, partial(receiver.found, ap)) as (beats_ap, events_ap, link_ap),
        ):
            receiver.listen_to(eu, beats_eu)
            receiver.listen_to(ap, beats_ap)
            for events in (events_eu, events_ap):
                assert isinstance(await events.get(), PeersObserved)
            for fake, events, link in ((first, events_eu, link_eu), (other, events_ap, link_ap)):
                await fake.stop()
                assert isinstance(await events.get(), TargetLost)
                await until(lambda link=link: link.is_failing)  # type: ignore[misc]
            async with serve_fake_peer(first.port) as one, serve_fake_peer(other.port) as two:
                for fake in (one, two):
                    fake.subscribed = lambda _, context: stay(context, REPORT)
                receiver.try_at_once(other_than=ap)
                assert isinstance(await events_eu.get(), PeersObserved)
                assert isinstance(await events_ap.get(), PeersObserved)
    assert len(told) == 4


async def test_a_ping_and_a_subscription_outlive_the_channel_that_they_began_on(peer: FakePeer) -> None:
    peer.answers_pings.clear()
    peer.subscribed = lambda _, context: stay(context, REPORT)
    async with heard(peer, HOUR) as (_, events, link):
        await until(lambda: peer.pings == 1)
        first = link._line
        link._lay_line()
        await first.channel.close()
        await until(lambda: peer.pings == 2)
        peer.answers_pings.set()
        assert isinstance(await events.get(), PeersObserved)
        second = link._line
        link._lay_line()
        await second.channel.close()
        lost = await events.get()
        assert isinstance(lost, TargetLost)
        assert "this gateway closed the connection" in lost.detail


async def test_a_peer_that_calls_and_still_is_not_heard_ends_one_pause(unused_tcp_port: int) -> None:
    nothing = FakePeer()
    nothing.port = unused_tcp_port
    async with heard(nothing, HOUR) as (heartbeats, _, link):
        await until(lambda: link.is_failing)
        heartbeats.try_at_once()
        assert not link.is_failing, "a new channel has not failed yet"
        await until(lambda: link.is_failing)
        heartbeats.try_at_once()
        assert link.is_failing


async def test_a_connection_that_was_due_for_renewal_is_no_reason_for_a_loss() -> None:
    """Status that gRPC gives for every end of a connection that was once told to be replaced."""

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await stay(context, REPORT)

    connections: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", aging.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pump(reader, there_writer))
                tasks.create_task(pump(there_reader, writer))
        finally:
            there_writer.transport.abort()

    aged = [("grpc.max_connection_age_ms", 50), ("grpc.max_connection_age_grace_ms", 3_600_000)]
    async with serve_fake_peer(options=aged) as aging, listening_on(carry) as port:
        aging.subscribed, way = subscribed, FakePeer()
        way.port = port
        async with listening(way) as events:
            assert isinstance(await events.get(), PeersObserved)
            before = len(connections)
            await until(lambda: len(connections) > before)  # all earlier connections have been told to be replaced
            for connection in connections:
                connection.transport.abort()
            while not isinstance(lost := await events.get(), TargetLost):
                pass
    assert lost.detail.startswith("UNAVAILABLE: ")
    assert "max_age" not in lost.detail


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
    writer.close()


async def test_silence_is_a_loss(peer: FakePeer) -> None:
    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await stay(context, REPORT)

    peer.subscribed = subscribed
    async with listening(peer, replace(QUICK, silence_max_ns=20 * MS)) as events:
        assert isinstance(await events.get(), PeersObserved)
        assert await events.get() == TargetLost(peer_target(SPEC.gateway_id), "it fell silent", is_silent=True)


async def test_a_peer_that_spoke_while_this_gateway_did_not_run_is_not_lost(peer: FakePeer) -> None:
    has_stalled = asyncio.Event()

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await context.write(codec.load_to_pb(REPORT, age_ns=0))
        await has_stalled.wait()
        await stay(context, replace(REPORT, sequence=2))

    peer.subscribed = subscribed
    async with listening(peer, replace(QUICK, silence_max_ns=3600 * SECOND)) as events:
        assert isinstance(await events.get(), PeersObserved)
        stall(7200)
        has_stalled.set()
        found = await events.get()
    assert isinstance(found, PeersObserved)
    assert found.observations[0].report.sequence == 2


async def test_a_peer_that_falls_silent_as_its_subscription_is_renewed_is_lost(
    aging_peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LEARNT_AFTER_NS", 0)
    again = count()

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        if next(again):
            await asyncio.Event().wait()
        for sequence in range(1, 1000):
            await context.write(codec.load_to_pb(replace(REPORT, sequence=sequence), age_ns=0))
            await asyncio.sleep(0.002)

    aging_peer.subscribed = subscribed
    async with listening(aging_peer, replace(QUICK, silence_max_ns=3600 * SECOND)) as events:
        while isinstance(event := await events.get(), PeersObserved):
            pass
    assert event == TargetLost(peer_target(SPEC.gateway_id), "it gave no sign of life for 1.5 s", is_silent=True)


async def test_a_peer_without_signs_of_life_is_lost_and_found_again_on_the_same_subscription(
    peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "LEARNT_AFTER_NS", 0)
    is_late, subscriptions = asyncio.Event(), count()

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        next(subscriptions)
        assert request.takes_signs_of_life
        await context.write(codec.load_to_pb(REPORT, age_ns=0))
        await context.write(pb.SubscribeResponse(is_sign_of_life=True))
        await is_late.wait()
        await context.write(pb.SubscribeResponse(is_sign_of_life=True))
        await stay(context, replace(REPORT, sequence=2))

    peer.subscribed = subscribed
    async with heard(peer, replace(QUICK, silence_max_ns=3600 * SECOND)) as (heartbeats, events, _):
        assert isinstance(await events.get(), PeersObserved)
        assert await events.get() == TargetLost(
            peer_target(SPEC.gateway_id), "it gave no sign of life for 1.5 s", is_silent=True
        )
        assert heartbeats.what_was_heard().is_broken
        is_late.set()
        found = await events.get()
        assert not heartbeats.what_was_heard().is_broken
    assert isinstance(found, PeersObserved)
    assert found.observations[0].report.sequence == 2
    assert next(subscriptions) == 1


async def test_a_sign_of_life_alone_is_no_heartbeat(peer: FakePeer) -> None:
    link = peer_link(peer.config(SPEC), QUICK)
    events: list[Event] = []
    heartbeats = make_heartbeats(link, events.append)
    heartbeats._take_in(pb.SubscribeResponse(is_sign_of_life=True))
    assert (events, heartbeats.what_was_heard().heard_ago_ns) == ([], None)
    heartbeats._take_in(codec.load_to_pb(REPORT, age_ns=0))
    heartbeats._take_in(pb.SubscribeResponse(is_sign_of_life=True))
    assert len(events) == 1
    await link.close()


@pytest.mark.parametrize(
    "report,detail",
    [
        (replace(REPORT, place=AP), "it claims to be in ap-northeast-1/JP, we know it in eu-west-1/EU"),
        (replace(REPORT, gateway_id=GatewayId("eu-2")), "it calls itself eu-2, we know it as eu-1"),
    ],
)
async def test_an_imposter_is_never_observed(peer: FakePeer, report: LoadReport, detail: str) -> None:
    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await stay(context, report)

    peer.subscribed = subscribed
    async with listening(peer) as events:
        seen = [await events.get() for _ in range(3)]
    assert seen == [TargetLost(peer_target(SPEC.gateway_id), detail)] * 3


async def test_an_old_subscription_is_followed_by_a_new_one_before_it_ends(aging_peer: FakePeer) -> None:
    """An old subscription would otherwise hold a connection, and its first certificate, for ever."""
    open_at_once: list[int] = []
    calls = 0

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        nonlocal calls
        calls += 1
        open_at_once.append(calls)
        try:
            for sequence in range(1, 1000):
                await context.write(codec.load_to_pb(replace(REPORT, sequence=sequence), age_ns=0))
                await asyncio.sleep(0.002)
        finally:
            calls -= 1

    aging_peer.subscribed = subscribed
    async with listening(aging_peer) as events:
        await until(lambda: len(open_at_once) > 3)
        seen = [events.get_nowait() for _ in range(events.qsize())]
    assert all(isinstance(event, PeersObserved) for event in seen), "the peer was never lost"
    assert min(open_at_once[1:4]) > 1, "the old one was still there when the new one came"


async def test_a_feature_that_misses_something_is_told_everything_anew(peer: FakePeer) -> None:
    told: list[tuple[int, int]] = []
    calls = 0

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        nonlocal calls
        calls += 1
        for sequence in (1, 2, 3):
            message = codec.load_to_pb(replace(REPORT, sequence=sequence), age_ns=0)
            message.cache_digest.to_version = calls
            await context.write(message)
        await asyncio.Event().wait()

    def read(message: pb.SubscribeResponse) -> TakeIn:
        heard = message.cache_digest.to_version, message.sequence

        def take_in() -> bool:
            told.append(heard)
            return heard == (1, 2)

        return take_in

    peer.subscribed = subscribed
    link = peer_link(peer.config(SPEC), QUICK)
    seen: list[Event] = []
    heartbeats = make_heartbeats(link, seen.append, read)
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(loop()) for loop in (heartbeats.measure, heartbeats.listen)]
        await until(lambda: (2, 3) in told)
        for loop in loops:
            loop.cancel()
    await link.close()
    assert told == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    assert all(isinstance(event, PeersObserved) for event in seen), "the peer was never lost"


async def test_a_new_subscription_that_fails_is_a_loss(aging_peer: FakePeer) -> None:
    again = count()

    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        if next(again):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you?")
        for sequence in range(1, 1000):
            await context.write(codec.load_to_pb(replace(REPORT, sequence=sequence), age_ns=0))
            await asyncio.sleep(0.002)

    aging_peer.subscribed = subscribed
    async with listening(aging_peer) as events:
        while isinstance(event := await events.get(), PeersObserved):
            pass
    assert event == TargetLost(peer_target(SPEC.gateway_id), "PERMISSION_DENIED: who are you?")


@pytest.mark.parametrize(
    "code,detail,failure",
    [
        (grpc.StatusCode.PERMISSION_DENIED, "who are you?", REFUSED_THERE),
        (grpc.StatusCode.UNAVAILABLE, "Tls handshake failed (TSI_PROTOCOL_FAILURE)", REFUSED_BY_US),
        (grpc.StatusCode.UNAVAILABLE, "Hostname Verification Check failed.", REFUSED_BY_US),
        (grpc.StatusCode.UNAVAILABLE, "Connection refused", NO_ANSWER),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", NO_ANSWER),
    ],
)
def test_a_failed_ping_says_whose_refusal_it_was(code: grpc.StatusCode, detail: str, failure: str) -> None:
    nothing = grpc.aio.Metadata()
    assert failure_of_ping(grpc.aio.AioRpcError(code, nothing, nothing, detail)) == failure


async def test_a_malformed_heartbeat_is_a_loss(peer: FakePeer) -> None:
    async def subscribed(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        await context.write(codec.load_to_pb(REPORT, age_ns=0))
        await context.write(pb.SubscribeResponse())
        await asyncio.Event().wait()

    peer.subscribed = subscribed
    async with listening(peer) as events:
        assert isinstance(await events.get(), PeersObserved)
        assert await events.get() == TargetLost(
            peer_target(SPEC.gateway_id), "its heartbeat is malformed: gateway_id is not an id"
        )


async def test_a_peer_that_never_stops_talking_is_heard_a_little_and_then_anew(peer: FakePeer) -> None:
    """A new subscription starts with the peer's latest report: earlier ones are dropped."""
    said = 0
    calls: list[int] = []

    async def flood(request: pb.SubscribeRequest, context: SubscribeContext) -> None:
        nonlocal said
        calls.append(said + 1)
        for _ in range(10_000):
            said += 1
            await context.write(codec.load_to_pb(replace(REPORT, sequence=said), age_ns=0))
        await asyncio.Event().wait()

    peer.subscribed = flood
    async with listening(peer, replace(QUICK, heartbeats_time_max_ns=2 * MS)) as events:
        await until(lambda: len(calls) == 3)
        seen = [events.get_nowait() for _ in range(events.qsize())]
    assert all(isinstance(event, PeersObserved) for event in seen), "it was never lost"
    heard = [each.report.sequence for event in seen if isinstance(event, PeersObserved) for each in event.observations]
    first, second = ([n for n in heard if start <= n < end] for start, end in pairwise(calls))
    assert 1 <= len(first) <= 10, "ten at a fifth of a millisecond each are all that there is time for"
    assert 1 <= len(second) <= 10
    assert second[0] == calls[1], "the first word on the new subscription is the next one heard"


def test_an_allowance_is_for_each_second_and_no_rest_is_longer() -> None:
    allowance = HeartbeatTimeBudget(50 * MS)
    assert allowance.spend(5 * SECOND, 20 * MS) == 0
    assert allowance.spend(5 * SECOND + 20 * MS, 20 * MS) == 0
    assert allowance.spend(5 * SECOND + 120 * MS, 20 * MS) == 880 * MS
    assert allowance.spend(6 * SECOND, 20 * MS) == 0, "another second"
    assert allowance.spend(9 * SECOND, 3 * SECOND) == SECOND


async def test_what_it_says_of_budgets_takes_of_its_time_too(peer: FakePeer) -> None:
    class Busy(Clock):
        spent_ns = 0

        def thread_ns(self) -> int:
            return self.spent_ns

    clock = Busy()

    def write_down(_: object) -> None:
        clock.spent_ns += 60 * MS

    link = peer_link(peer.config(SPEC), QUICK)
    heartbeats = Heartbeats(
        link,
        GatewayId("us-1"),
        US,
        submit=lambda _: None,
        clock=clock,
        rng=random.Random(1),
        on_refused=lambda: None,
        log=make_logger(LoggingConfig(), GatewayId("us-1")),
        on_budgets=write_down,
    )
    message = codec.load_to_pb(REPORT, age_ns=0)
    assert heartbeats._take_in(message) == 0
    message.budget_uses.add(kind="key", name="a", day="2026-11-22")
    assert heartbeats._take_in(message) > 0
    await link.close()


class Features:
    """Readers of two features, and what they did, in order. The second needs a pool in the heartbeat."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def first(self, _: pb.SubscribeResponse) -> TakeIn:
        self.did.append("read")
        return partial(self._note, "took in")

    def second(self, message: pb.SubscribeResponse) -> TakeIn:
        if not message.pool_loads:
            raise WireError("no pool")
        return partial(self._note, "took in, too")

    def _note(self, what: str) -> bool:
        self.did.append(what)
        return False


@pytest.mark.parametrize(
    ("report", "pools", "lost", "did"),
    [
        (REPORT, 1, None, ["read", "observed", "took in", "took in, too"]),
        (REPORT, 0, WireError, ["read"]),
        (replace(REPORT, gateway_id=GatewayId("other")), 1, IdentityMismatch, ["read"]),
    ],
)
async def test_what_features_add_is_read_first_and_taken_in_from_the_peer_alone(
    peer: FakePeer, report: LoadReport, pools: int, lost: type[Exception] | None, did: list[str]
) -> None:
    features = Features()
    link = peer_link(peer.config(SPEC), QUICK)
    heartbeats = Heartbeats(
        link,
        GatewayId("us-1"),
        US,
        submit=lambda _: features.did.append("observed"),
        clock=Clock(),
        rng=random.Random(1),
        on_refused=lambda: None,
        log=make_logger(LoggingConfig(), GatewayId("us-1")),
        readers=(features.first, features.second),
    )
    message = codec.load_to_pb(report, age_ns=0)
    message.pool_loads.extend(pb.PoolLoad() for _ in range(pools))
    with nullcontext() if lost is None else pytest.raises(lost):
        heartbeats._take_in(message)
    assert features.did == did
    await link.close()


def test_a_peer_that_keeps_to_its_pace_is_always_heard() -> None:
    """Holds also when a line that hung delivers ten seconds of heartbeats at once."""
    allowance = HeartbeatTimeBudget(PeeringConfig().heartbeats_time_max_ns)
    burst = [allowance.spend(n * MS // 5, MS // 5) for n in range(100)]
    steady = [allowance.spend(n * 100 * MS, 4 * MS) for n in range(20, 60)]
    assert set(burst + steady) == {0}


def test_a_report_is_dated_back_by_its_age_and_half_a_round_trip() -> None:
    trips = RoundTrips(4)
    trips.add(100)
    observation = observe(REPORT, 1000, trips, now_ns=10_000)
    assert (observation.generated_ns, observation.heard_ns) == (8950, 10_000)
    assert (observation.rtt_ns, observation.rtt_p99_ns) == (100, 100)


def test_round_trips_are_taken_over_a_window() -> None:
    trips = RoundTrips(100)
    assert (trips.median_ns(), trips.p99_ns()) == (0, 0)
    for rtt_ns in (10_000, *range(1, 101)):
        trips.add(rtt_ns)
    assert (trips.median_ns(), trips.p99_ns()) == (50, 99), "the outlier has left the window"


def test_identity_is_gateway_and_place() -> None:
    assert identity_fault(REPORT, SPEC) is None
    assert identity_fault(replace(REPORT, place=US), SPEC) is not None
