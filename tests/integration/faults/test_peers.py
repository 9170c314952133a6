"""Peers that lie, hang, die, repeat themselves, or are heard but not reached. After each, both sides are at rest.

A whole gateway meets them over real sockets here; the unit tests of `gateway.peers` cover the contents of each message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from gateway.config.sections import AuditConfig, PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.vocabulary import GatewayId, Jurisdiction, LoadReport, ModelName, Place, RegionName, ReplicaId
from gateway.peers import codec
from gateway.request.legs import RanAt
from loadgen.wan import Wan
from mesh.values import Address
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, hang, stream_until, token
from tests.fakes.exchanging import FrameContext
from tests.fakes.liar import (
    Beat,
    Liar,
    accept_and_hang,
    answered_with,
    idle_beat,
    idle_report,
    never_answer,
    serve_liar,
    serve_with,
)
from tests.fakes.peer import Forwarded
from tests.support.core import EU, LAYERED, MS, SECOND, US, peer_spec, under
from tests.support.gateways import QUICK_PEERING, ask, counted, until, usable_peers
from tests.support.listening import Talk, listening
from tests.support.regions import Mesh, Region, regions_apart
from tests.support.rest import until_at_rest

STREAM = b"".join(GOOD_STREAM)
IMPATIENT = replace(QUICK_PEERING, accept_timeout_ns=100 * MS)
SPEC = peer_spec("eu-1", EU)
NO_AUDIT = AuditConfig()


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    async with serve_liar() as made:
        yield made


async def beside(
    mesh: Mesh,
    liar: Liar,
    core: CoreConfig | None = None,
    peering: PeeringConfig = QUICK_PEERING,
    audit: AuditConfig = NO_AUDIT,
) -> Region:
    """A busy region whose only peer is the liar."""
    us = await mesh.region("us-1", US)
    peers = (liar.fake.config(SPEC),)
    us.config = replace(us.config, peers=peers, peering=peering, core=core or us.config.core, audit=audit)
    await us.start()
    mesh.on_close(us.stop)
    await us.become_busy()
    return us


@dataclass
class Client:
    """One request in a task of its own."""

    task: asyncio.Task[tuple[int, bytes]]

    @property
    def body(self) -> bytes:
        return self.task.result()[1]


@asynccontextmanager
async def asking(mesh: Mesh, us: Region, count: int = 1, **changes: object) -> AsyncIterator[list[Client]]:
    async def ask_once() -> tuple[int, bytes]:
        async with ask(mesh.session, us.gateway.http_url, **changes) as response:
            return response.status, await response.read()

    async with asyncio.TaskGroup() as tasks:
        yield [Client(tasks.create_task(ask_once())) for _ in range(count)]


async def served_at_home(mesh: Mesh, us: Region) -> None:
    """Assert that a request is answered as soon as there is room at home, whatever the peer reports."""
    async with asking(mesh, us) as (client,):
        await until(lambda: us.gateway.driver.open_requests == 1)
        await us.become_free()
    assert client.body == STREAM
    assert len(us.engine.received) == 1


# Lies in a heartbeat


def said(change: Callable[[pb.SubscribeResponse], object]) -> Beat:
    def beat(number: int) -> pb.SubscribeResponse:
        message = idle_beat(number)
        change(message)
        return message

    return beat


def set_capacity(**fields: int) -> Callable[[pb.SubscribeResponse], object]:
    def change(message: pb.SubscribeResponse) -> None:
        for name, value in fields.items():
            setattr(message.capacities[0], name, value)

    return change


UNBELIEVABLE = {
    "another gateway's id": said(lambda message: setattr(message, "gateway_id", "ap-1")),
    "our own id": said(lambda message: setattr(message, "gateway_id", "us-1")),
    "another region": said(lambda message: setattr(message.place, "region", US.region)),
    "another jurisdiction": said(lambda message: setattr(message.place, "jurisdiction", "US")),
    "an age of years": said(lambda message: setattr(message, "age_us", 2**63)),
    "more available than there are": said(set_capacity(replicas=1, available=2**32 - 1)),
    "a model without a name": said(lambda message: setattr(message.capacities[0], "model", "")),
    "a model of a megabyte": said(lambda message: setattr(message.capacities[0], "model", "m" * 2**20)),
    "queues without end": said(
        lambda message: message.queues.extend(pb.ModelQueue(model="m", length=1) for _ in range(5000))
    ),
    "nothing": lambda _: pb.SubscribeResponse(),
}


@pytest.mark.parametrize("lie", UNBELIEVABLE)
async def test_a_heartbeat_that_cannot_be_believed_makes_no_target(mesh: Mesh, liar: Liar, lie: str) -> None:
    liar.beat = UNBELIEVABLE[lie]
    us = await beside(mesh, liar)
    await until(lambda: liar.beats >= 3)
    assert usable_peers(us.gateway) == 0
    await served_at_home(mesh, us)
    assert liar.arrived.count == 0
    await until_at_rest(us.gateway)


async def test_a_peer_that_turns_into_an_imposter_is_left_at_once(mesh: Mesh, liar: Liar) -> None:
    us = await beside(mesh, liar)
    await until(lambda: usable_peers(us.gateway) == 1)
    liar.beat = UNBELIEVABLE["another region"]
    await until(lambda: usable_peers(us.gateway) == 0)
    await served_at_home(mesh, us)
    assert liar.arrived.count == 0


@pytest.mark.parametrize("claimed", [1, 2**32 - 1])
async def test_a_peer_that_claims_to_be_idle_and_refuses_costs_a_bounded_number_of_tries(
    mesh: Mesh, liar: Liar, claimed: int
) -> None:
    liar.beat = lambda number: codec.load_to_pb(idle_report(number, available=claimed), age_ns=0)
    us = await beside(mesh, liar)
    clients_max = 5
    async with asking(mesh, us, clients_max) as clients:
        most = clients_max * us.config.core.attempt.refusals_max
        await until(lambda: gauges_of(us.gateway.core, 0).queue_length == clients_max and liar.arrived.count == most)
        beats = liar.beats
        await until(lambda: liar.beats > beats + 5)
        assert liar.arrived.count == most, "nobody asks it again who was refused that often"
        await us.become_free()
    assert [client.body for client in clients] == [STREAM] * clients_max
    assert counted(us.gateway, "forwards_refused_total", peer="eu-1", reason="busy") == most
    await until_at_rest(us.gateway)
    assert liar.open == 0


@pytest.mark.parametrize("silence", [never_answer, accept_and_hang])
async def test_a_peer_that_claims_to_be_idle_and_hangs_costs_a_request_one_wait(
    mesh: Mesh, liar: Liar, silence: Forwarded
) -> None:
    liar.forwards = silence
    attempt = replace(CoreConfig().attempt, first_token_deadline_ns=300 * MS)
    us = await beside(mesh, liar, replace(under(LAYERED), attempt=attempt), IMPATIENT)
    await until(lambda: usable_peers(us.gateway) == 1)
    async with asking(mesh, us) as (client,):
        await liar.arrived.reaches(1)
        await until(lambda: gauges_of(us.gateway.core, 0).queue_length == 1)
        beats = liar.beats
        await until(lambda: liar.beats > beats + 5)
        assert liar.arrived.count == 1, "it is not asked again for a request that it let hang"
        await us.become_free()
    assert client.body == STREAM
    await until_at_rest(us.gateway)
    await until(lambda: liar.open == 0)


async def test_a_peer_that_always_hangs_is_asked_no_more_by_anybody(mesh: Mesh, liar: Liar) -> None:
    liar.forwards = never_answer
    us = await beside(mesh, liar, peering=IMPATIENT)
    await until(lambda: usable_peers(us.gateway) == 1)
    failures = us.config.core.attempt.breaker_failures_in_row
    async with asking(mesh, us, failures) as clients:
        await until(lambda: counted(us.gateway, "attempts_total", target="peer", result="failed") == failures)
        beats = liar.beats
        await until(lambda: liar.beats > beats + 5)
        assert usable_peers(us.gateway) == 0, "its heartbeats go on, and are not believed"
        await us.become_free()
    assert [client.body for client in clients] == [STREAM] * failures
    await until_at_rest(us.gateway)
    await until(lambda: liar.open == 0)


async def test_a_peer_that_advertises_a_model_it_has_not_leaves_nobody_waiting_for_ever(mesh: Mesh, liar: Liar) -> None:
    ghost = ModelName("ghost")
    liar.beat = lambda number: codec.load_to_pb(idle_report(number, model=ghost), age_ns=0)
    core = under(LAYERED)
    us = await beside(mesh, liar, core)
    await until(lambda: usable_peers(us.gateway) == 1)
    async with asking(mesh, us, model=ghost) as (client,):
        pass
    status, body = client.task.result()
    assert (status, b'"code":"queue_full"' in body) == (503, True), "whoever turns it away every time is full for it"
    assert liar.arrived.count == core.attempt.refusals_max
    await until_at_rest(us.gateway)


# Heartbeats that come late, again or out of order


class Told:
    """Heartbeats of a peer, each sent when the test says so."""

    def __init__(self, liar: Liar) -> None:
        self._message = codec.load_to_pb(idle_report(1, available=0), age_ns=0)
        self._liar = liar
        liar.beat = lambda _: self._message

    async def say(self, report: LoadReport, age_ns: int = 0) -> None:
        """Report this load, and wait until it was sent at least twice; further heartbeats repeat it."""
        self._message = codec.load_to_pb(report, age_ns)
        beats = self._liar.beats
        await until(lambda: self._liar.beats > beats + 2)


def heard(us: Region) -> tuple[int, int]:
    """Sequence and available replicas of the report in force."""
    state = us.gateway.core.peers.get(GatewayId("eu-1"))
    assert state is not None
    assert state.report is not None
    return state.report.sequence, sum(capacity.available for capacity in state.report.capacities)


async def test_an_older_heartbeat_that_comes_later_changes_nothing(mesh: Mesh, liar: Liar) -> None:
    told = Told(liar)
    us = await beside(mesh, liar)
    await until(lambda: usable_peers(us.gateway) == 1)
    await told.say(idle_report(10, available=0))
    await told.say(idle_report(9, available=1), age_ns=2 * SECOND)
    assert heard(us) == (10, 0)
    await served_at_home(mesh, us)
    assert liar.arrived.count == 0


async def test_a_peer_that_restarted_counts_from_one_and_is_believed(mesh: Mesh, liar: Liar) -> None:
    told = Told(liar)
    us = await beside(mesh, liar)
    await until(lambda: usable_peers(us.gateway) == 1)
    await told.say(idle_report(2**64 - 1, available=0))
    await told.say(idle_report(1, available=1))
    await until(lambda: heard(us) == (1, 1))


async def test_a_heartbeat_told_again_frees_no_second_place(mesh: Mesh, liar: Liar) -> None:
    """A keep-alive repeats what was measured before the forward arrived, and must not count as a newer measurement. The
    repeated measurement would make the peer stale where this process stops for seconds."""
    liar.forwards = accept_and_hang
    core = under(LAYERED)
    core = replace(core, observation=replace(core.observation, keep_alive_ns=60 * SECOND))
    us = await beside(mesh, liar, core)
    clock = us.gateway.driver._clock
    measured_ns = clock.now_ns()
    liar.beat = lambda _: codec.load_to_pb(idle_report(7), age_ns=clock.now_ns() - measured_ns)
    await until(lambda: liar.beats > 3 and heard(us)[0] == 7)
    async with asking(mesh, us, 3) as clients:
        await liar.arrived.reaches(1)
        beats = liar.beats
        await until(lambda: liar.beats > beats + 5)
        assert liar.arrived.count == 1
        measured_ns = clock.now_ns() + 50 * MS
        await asyncio.sleep(0.05)
        await liar.arrived.reaches(2)
        for client in clients:
            client.task.cancel()
    await until_at_rest(us.gateway)
    await until(lambda: liar.open == 0)


async def test_a_report_that_was_long_on_its_way_is_stale_when_it_comes(mesh: Mesh, liar: Liar) -> None:
    told = Told(liar)
    us = await beside(mesh, liar)
    await until(lambda: usable_peers(us.gateway) == 1)
    stale_ns = 3 * us.config.core.observation.keep_alive_ns
    await told.say(idle_report(2), age_ns=stale_ns + SECOND)
    assert (heard(us)[0], usable_peers(us.gateway)) == (2, 0)
    await served_at_home(mesh, us)
    assert liar.arrived.count == 0


# Forwards that end badly


async def test_a_peer_that_dies_after_taking_a_forward_leaves_no_count_behind(mesh: Mesh, liar: Liar) -> None:
    liar.forwards = accept_and_hang
    us = await beside(mesh, liar)
    async with asking(mesh, us) as (client,):
        await liar.arrived.reaches(1)
        await liar.fake.stop()
        await until(lambda: usable_peers(us.gateway) == 0)
        await us.become_free()
    assert client.body == STREAM
    assert counted(us.gateway, "retries_total", after="failed") == 1
    await until_at_rest(us.gateway)
    assert liar.open == 0


async def test_a_peer_that_dies_in_the_middle_leaves_no_count_behind(mesh: Mesh, liar: Liar) -> None:
    async def begin(_: pb.ForwardRequest, context: FrameContext) -> None:
        await context.write(answer_frames.accepted())
        for message in answered_with(ROLE + token("Hel"))[:-1]:
            await context.write(message)
        await asyncio.Event().wait()

    liar.forwards = begin
    us = await beside(mesh, liar)
    async with ask(mesh.session, us.gateway.http_url) as response:
        assert await response.content.readany() == ROLE + token("Hel")
        await liar.fake.stop()
        rest = await response.read()
    assert b'"code":"engine_failed_midstream"' in rest
    assert rest.endswith(DONE)
    await until_at_rest(us.gateway)
    assert us.engine.received == [], "what a client has seen a part of is not run again"


@pytest.mark.parametrize(
    "broken",
    [
        [pb.AnswerFrame()],
        [answer_frames.data(b"data: too early\n\n")],
        [answer_frames.accepted(), answer_frames.accepted()],
        [answer_frames.accepted(), *answered_with(ROLE)[:1], pb.AnswerFrame(ended=pb.Ended(outcome="very well"))],
        [answer_frames.accepted(), pb.AnswerFrame(ended=pb.Ended(outcome="completed"))],
        [pb.AnswerFrame(refused=pb.Refused(reason="in no mood"))],
    ],
    ids=[
        "nothing",
        "data first",
        "accepted twice",
        "no word for an end",
        "an end without a head",
        "no word for a reason",
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_one_failed_attempt(
    mesh: Mesh, liar: Liar, broken: list[pb.AnswerFrame]
) -> None:
    async def forwards(_: pb.ForwardRequest, context: FrameContext) -> None:
        for message in broken:
            await context.write(message)

    liar.forwards = forwards
    await assert_one_attempt_fails(mesh, liar)
    assert liar.open == 0


async def test_a_peer_that_closes_the_call_without_a_word_is_one_failed_attempt(mesh: Mesh, liar: Liar) -> None:
    async def forwards(_: pb.ForwardRequest, context: FrameContext) -> None:
        await context.abort(grpc.StatusCode.INTERNAL, "no")

    liar.forwards = forwards
    await assert_one_attempt_fails(mesh, liar)


async def assert_one_attempt_fails(mesh: Mesh, liar: Liar) -> None:
    """Assert that the attempt at the peer fails, and the request is served at home."""
    us = await beside(mesh, liar)
    async with asking(mesh, us) as (client,):
        await until(lambda: counted(us.gateway, "attempts_total", target="peer", result="failed") == 1)
        await us.become_free()
    assert client.body == STREAM
    await until_at_rest(us.gateway)


async def test_a_liar_that_tells_the_truth_at_last_is_used_again(mesh: Mesh, liar: Liar) -> None:
    liar.beat = UNBELIEVABLE["another region"]
    us = await beside(mesh, liar)
    await until(lambda: counted(us.gateway, "targets_lost_total", target="peer") > 0)
    liar.beat, liar.forwards = idle_beat, serve_with(*GOOD_STREAM)
    async with asking(mesh, us) as (client,):
        pass
    assert client.body == STREAM
    assert liar.arrived.count == 1
    await until_at_rest(us.gateway)


# Addresses where no peer is


async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def web_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection at once."""


@pytest.mark.parametrize("talk", [mute, web_page, hang_up])
async def test_whatever_else_listens_at_a_peers_address_is_no_target(mesh: Mesh, talk: Talk) -> None:
    dialled = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await talk(reader, writer)

    us = await mesh.region("us-1", US)
    peering = replace(IMPATIENT, ping_timeout_ns=100 * MS, connect_timeout_ns=100 * MS)
    async with listening(handle) as port:
        us.config = replace(us.config, peers=(PeerConfig(SPEC, Address("127.0.0.1", port)),), peering=peering)
        await us.start()
        mesh.on_close(us.stop)
        await us.become_busy()
        await dialled.wait()
        assert usable_peers(us.gateway) == 0
        await served_at_home(mesh, us)
        await until_at_rest(us.gateway)


# Peers that are heard and not reached: a line that carries one way only


WATCHFUL = replace(
    QUICK_PEERING,
    accept_timeout_ns=SECOND,
    keepalive_interval_ns=300 * MS,
    keepalive_timeout_ns=SECOND,
    silence_max_ns=2 * SECOND,
)


@pytest.mark.parametrize("dead", [(US, EU), (EU, US)], ids=["what we send is lost", "what we should hear is lost"])
async def test_a_peer_behind_a_one_way_line_is_left_and_found_again(mesh: Mesh, dead: tuple[object, object]) -> None:
    async with regions_apart(mesh, WATCHFUL, 10) as (wan, us, eu):
        source, destination = (US, EU) if dead == (US, EU) else (EU, US)
        wan.cut_one_way(source.region, destination.region)
        async with asking(mesh, us) as (client,):
            await until(lambda: usable_peers(us.gateway) == 0)  # a slow machine notices before it forwards
            await us.become_free()
        assert client.body == STREAM
        assert counted(us.gateway, "attempts_total", target="peer", result="completed") == 0
        wan.heal(US.region, EU.region)
        await until(lambda: usable_peers(us.gateway) == usable_peers(eu.gateway) == 1)
        await until_at_rest(us.gateway, eu.gateway)
        await us.become_busy()
        before = len(eu.engine.received)
        async with asking(mesh, us) as (client,):
            pass
        assert client.body == STREAM
        assert len(eu.engine.received) == before + 1
        await until_at_rest(us.gateway, eu.gateway)


@pytest.mark.parametrize("cut", [Wan.cut, Wan.cut_one_way], ids=["both ways", "one way"])
async def test_a_stream_over_a_line_that_is_cut_ends_on_both_sides(
    mesh: Mesh, cut: Callable[[Wan, RegionName, RegionName], None]
) -> None:
    async with regions_apart(mesh, WATCHFUL, 10) as (wan, us, eu):
        eu.engine.plays(stream_until(asyncio.Event(), (ROLE, token("Hel"))))
        async with ask(mesh.session, us.gateway.http_url) as response:
            assert await response.content.readany() == ROLE + token("Hel")
            cut(wan, US.region, EU.region)
            assert b'"code":"engine_failed_midstream"' in await response.read()
        await eu.engine.aborted.reaches(1)
        await until_at_rest(us.gateway, eu.gateway)


async def test_a_client_that_leaves_while_the_line_is_dead_is_no_ghost_over_there(mesh: Mesh) -> None:
    """No message can reach the peer; it detects by itself that its caller is gone."""
    async with regions_apart(mesh, WATCHFUL, 10) as (wan, us, eu):
        eu.engine.plays(hang)
        async with asyncio.TaskGroup() as tasks:

            async def client() -> None:
                async with ask(mesh.session, us.gateway.http_url) as response:
                    await response.read()

            leaving = tasks.create_task(client())
            await eu.engine.arrived.reaches(1)
            wan.cut_one_way(US.region, EU.region)
            leaving.cancel()
        await eu.engine.aborted.reaches(1)
        await until_at_rest(us.gateway, eu.gateway)


# Lies about where a request ran


async def test_a_peer_that_ran_where_it_must_not_sounds_the_alarm_and_is_sent_nothing_more(
    mesh: Mesh, liar: Liar, tmp_path: Path
) -> None:
    """No byte of the answer reaches the client, and only an operator can make the peer a target again."""
    forbidden = RanAt(ReplicaId("sa-a"), Place(RegionName("sa-east-1"), Jurisdiction("BR")))
    liar.forwards = serve_with(*GOOD_STREAM, ran_at=forbidden)
    us = await beside(mesh, liar, audit=AuditConfig(folder=tmp_path / "audit"))
    async with asking(mesh, us) as (client,):
        await until(lambda: counted(us.gateway, "residency_violations_total", peer="eu-1") == 1)
        beats = liar.beats
        await until(lambda: liar.beats > beats + 3)
        assert usable_peers(us.gateway) == 0
        await us.become_free()
    assert client.body == STREAM
    assert (len(us.engine.received), liar.arrived.count) == (1, 1), "it ran at home, after one forward"
    async with mesh.session.get(f"{us.gateway.admin_url}/ready") as response:
        assert "sa-east-1" in (await response.json())["distrusted_peers"]

    order = {"active": False, "reason": "the peer is mended"}
    async with mesh.session.post(f"{us.gateway.admin_url}/admin/lockdown", json=order) as response:
        assert response.status == 200
    await until(lambda: usable_peers(us.gateway) == 1)
    await us.stop()
    records = [json.loads(line) for path in (tmp_path / "audit").iterdir() for line in path.read_text().splitlines()]
    (violation,) = [record for record in records if record["kind"] == "violation"]
    assert violation["peer"] == "eu-1"
    assert violation["processed"] == {"replica": "sa-a", "region": "sa-east-1", "jurisdiction": "BR"}
