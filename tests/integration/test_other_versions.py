"""Gateways of other versions beside the current one: an older version, and one whose messages have unknown fields and
words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest

from gateway.core.kernel.attempts import BreakerState
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, token
from tests.fakes.other_versions import Protocol, frozen, newer
from tests.support.core import AP, EU, MODEL, TENANT, US
from tests.support.gateways import ask, counted, knowing, until, usable_peers, write_policy
from tests.support.regions import Mesh, Region, good_answer

BODY = b'{"model": "llama", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'


@dataclass
class Stranger:
    """A gateway of another version: `answers` are its frames of a forward's answer, and `news` makes it send a
    heartbeat."""

    protocol: Protocol
    answers: list[Any] = field(default_factory=list)
    forwards: list[Any] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def place(self) -> Any:
        return self.protocol.make("Place", region=EU.region, jurisdiction=EU.jurisdiction)

    def says(self, kind: str, **fields: Any) -> Any:
        """Frame of a forward's answer."""
        made = self.protocol.make(kind.capitalize(), **fields)
        return self.protocol.make("AnswerFrame", **{kind: made})

    def head(self) -> Any:
        told = {"content-type": "text/event-stream", "x-nightside-ran-at": f"eu-a;{EU.region};{EU.jurisdiction}"}
        headers = [self.protocol.make("Header", name=name, value=value) for name, value in told.items()]
        return self.says("head", status=200, headers=headers)

    def data(self, *pieces: bytes) -> Any:
        return self.protocol.make("AnswerFrame", data=b"".join(pieces))

    def ended(self, outcome: str) -> Any:
        return self.says("ended", outcome=outcome, replica_id="eu-a", place=self.place())

    def unheard_of(self) -> list[Any]:
        """Word that the current version does not know, if this version has one."""
        return [self.protocol.make("AnswerFrame", progress="half")] if self.protocol.knows_progress else []

    def is_asked_again(self) -> bool:
        """True if the forward was repeated; after a refusal that takes a new heartbeat, which this call triggers."""
        self.news.set()
        return len(self.forwards) > 1

    # Calls

    async def subscribe(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        capacity = {"model": MODEL, "pool": "default", "place": self.place(), "replicas": 1, "available": 1}
        for sequence in count(1):
            yield self.protocol.make(
                "SubscribeResponse",
                gateway_id="eu-1",
                place=self.place(),
                sequence=sequence,
                accepting=True,
                assignment_version=1,
                capacities=[self.protocol.make("ModelCapacity", **capacity)],
            )
            await self.news.wait()
            self.news.clear()

    async def ping(self, _request: Any, _context: Any) -> Any:
        return self.protocol.make("PingResponse")

    async def exchange(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer each forward, whose request comes in one frame."""
        await context.send_initial_metadata(())
        async for message in messages:
            for frame in message.frames:
                if frame.request_bytes:
                    self.forwards.append(self.protocol.read("ForwardRequest", frame.request))
                    for answer in (*self.answers, self.protocol.make("AnswerFrame", last=True)):
                        answer.forward = frame.forward
                        yield self.protocol.make("ExchangeResponse", frames=[answer])

    @asynccontextmanager
    async def beside_busy_us(self, mesh: Mesh) -> AsyncIterator[Region]:
        """Run a busy US gateway of the current version whose peer is this gateway; its requests must be forwarded."""
        us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
        us.config = knowing(us.config, eu.config)
        calls = {"Subscribe": self.subscribe, "Ping": self.ping, "Exchange": self.exchange}
        async with self.protocol.serving(eu.config.listen.peers.port, **calls):
            await us.start()
            try:
                await until(lambda: usable_peers(us.gateway) == 1)
                await us.become_busy()
                yield us
            finally:
                await us.stop()


@pytest.fixture(params=[frozen, newer])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    made = request.param()
    assert isinstance(made, Protocol)
    return made


@pytest.fixture
def stranger(protocol: Protocol) -> Stranger:
    return Stranger(protocol)


def attempts(us: Region, result: str) -> float:
    return counted(us.gateway, "attempts_total", target="peer", result=result)


def assert_nothing_is_held_against_it(us: Region) -> None:
    (peer,) = us.gateway.core.peers
    assert peer.breaker.state is BreakerState.CLOSED
    assert attempts(us, "failed") == 0
    assert attempts(us, "refused") > 0


async def test_what_leaves_us_comes_back_byte_for_byte(mesh: Mesh, stranger: Stranger) -> None:
    unheard_of = stranger.unheard_of()
    stranger.answers = [*unheard_of, stranger.says("accepted"), *unheard_of, stranger.head()]
    stranger.answers += [stranger.data(*GOOD_STREAM[:2]), *unheard_of, stranger.data(*GOOD_STREAM[2:])]
    stranger.answers += [*unheard_of, stranger.ended("completed"), *unheard_of]
    async with stranger.beside_busy_us(mesh) as us, ask(mesh.session, us.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
        assert response.headers["x-nightside-region"] == EU.region
    (forward,) = stranger.forwards
    assert (forward.origin_gateway_id, forward.hops_cross_region, forward.stamp.tenant) == ("us-1", 1, TENANT)


async def test_a_header_beyond_ascii_is_empty_as_text_and_whole_as_bytes(mesh: Mesh, stranger: Stranger) -> None:
    stranger.answers = [stranger.says("accepted"), stranger.head(), stranger.data(*GOOD_STREAM)]
    stranger.answers.append(stranger.ended("completed"))
    headers = {"content-type": "application/json", "x-session-id": "セッション", "user-agent": "plain"}
    async with stranger.beside_busy_us(mesh) as us:
        url = f"{us.gateway.http_url}/v1/chat/completions"
        async with mesh.session.post(url, data=BODY, headers=headers) as response:
            assert await response.read() == b"".join(GOOD_STREAM)
    (forward,) = stranger.forwards
    told = {each.name: (each.value, each.raw) for each in forward.headers}
    assert told["x-session-id"] == ("", "セッション".encode())
    assert told["user-agent"] == ("plain", b"")


@pytest.mark.parametrize("how", ["refused", "ended", "closed"])
async def test_a_no_in_words_that_we_do_not_know_is_nobodys_failure(mesh: Mesh, stranger: Stranger, how: str) -> None:
    """The request is retried at any other place that becomes free: in the end at home."""
    stranger.answers = {
        "refused": [stranger.says("refused", reason="out_of_token_budget", detail="tomorrow")],
        "ended": [stranger.says("accepted"), stranger.ended("moved_to_another_pool")],
        "closed": [stranger.says("accepted"), *(stranger.unheard_of() or [stranger.ended("moved_to_another_pool")])],
    }[how]
    async with stranger.beside_busy_us(mesh) as us, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(good_answer(mesh, us))
        await until(lambda: counted(us.gateway, "forwards_refused_total", peer="eu-1", reason="busy") > 0)
        await until(stranger.is_asked_again)
        await us.become_free()
        await asking
        assert_nothing_is_held_against_it(us)


async def test_a_request_that_no_place_there_may_process_comes_home_and_is_not_asked_of_it_again(
    mesh: Mesh, stranger: Stranger
) -> None:
    """The previous version does not know this refusal, and reads it as any unknown one."""
    stranger.answers = [stranger.says("accepted"), stranger.ended("rejected_residency_processing")]
    async with stranger.beside_busy_us(mesh) as us, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(good_answer(mesh, us))
        await until(lambda: counted(us.gateway, "forwards_refused_total", peer="eu-1", reason="residency_stamp") > 0)
        await us.become_free()
        await asking
        assert_nothing_is_held_against_it(us)
    assert len(stranger.forwards) == 1


async def test_an_end_in_words_that_we_do_not_know_breaks_off_an_answer_that_has_begun(
    mesh: Mesh, stranger: Stranger
) -> None:
    begun = stranger.data(ROLE, token("Hel"))
    stranger.answers = [stranger.says("accepted"), stranger.head(), begun, stranger.ended("moved_to_another_pool")]
    async with stranger.beside_busy_us(mesh) as us, ask(mesh.session, us.gateway.http_url) as response:
        body = await response.read()
        assert body.startswith(ROLE + token("Hel"))
        assert b'"code":"engine_failed_midstream"' in body
        assert body.endswith(DONE)
        assert_nothing_is_held_against_it(us)


class Caller:
    """A gateway of another version in the US that forwards to a current one in the EU."""

    def __init__(self, protocol: Protocol, channel: grpc.aio.Channel, asked: Region) -> None:
        self.protocol = protocol
        self.asked = asked
        self._channel = channel

    def us(self) -> Any:
        return self.protocol.make("Place", region=US.region, jurisdiction=US.jurisdiction)

    def call(self, name: str, **fields: Any) -> Any:
        return self.protocol.call(self._channel, name)(self.protocol.make(f"{name}Request", **fields))

    async def forward(self, **headers: str) -> list[Any]:
        """Frames of the answer to a forward."""
        make = self.protocol.make
        rule = make("PlaceRule", regions=[US.region, EU.region])
        request = make(
            "ForwardRequest",
            request_id="r-1",
            origin_gateway_id="us-1",
            hops_cross_region=1,
            stamp=make("ResidencyStamp", origin=self.us(), tenant=TENANT, rule=rule),
            deadline_ms=30_000,
            profile=make(
                "Profile",
                model=MODEL,
                tenant=TENANT,
                prompt_bytes=5,
                prefix_block_bytes=16,
                session_key="s",
                stream=True,
            ),
            path="/v1/chat/completions",
            headers=[
                make("Header", name=name.replace("_", "-"), value=value)
                for name, value in {"content-type": "application/json", **headers}.items()
            ],
            body=BODY,
        ).SerializeToString()
        frame = make("OriginFrame", forward=1, request_bytes=len(request), request=request, credit=2**20)
        call = self.protocol.call(self._channel, "Exchange")()
        await call.write(make("ExchangeRequest", frames=[frame]))
        answers: list[Any] = []
        while not answers or not (answers[-1].HasField("ended") or answers[-1].HasField("refused")):
            answers += (await call.read()).frames
        call.cancel()
        return answers


@asynccontextmanager
async def calling(protocol: Protocol, mesh: Mesh, policy_file: Path | None = None) -> AsyncIterator[Caller]:
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU, policy_file)
    eu.config = knowing(eu.config, us.config)
    await eu.start()
    mesh.on_close(eu.stop)
    await until(lambda: not eu.is_busy)
    async with grpc.aio.insecure_channel(str(eu.config.listen.peers)) as channel:
        yield Caller(protocol, channel, eu)


async def test_what_it_sends_us_runs_here_and_is_explained(mesh: Mesh, protocol: Protocol) -> None:
    async with calling(protocol, mesh) as caller:
        answers = await caller.forward()
        explained = await caller.call("Explain", gateway_id="us-1", request_id="r-1")
    words = [name for each in answers for name in ("accepted", "head", "ended") if each.HasField(name)]
    assert words == ["accepted", "head", "ended"]
    assert b"".join(each.data for each in answers) == b"".join(GOOD_STREAM)
    assert (answers[-1].ended.outcome, answers[-1].ended.place.region) == ("completed", EU.region)
    if "document" in explained.DESCRIPTOR.fields_by_name:  # the version before has other fields, which stay empty
        told = msgspec.json.decode(explained.document)
        assert (told["outcome"], [each["kind"] for each in told["placements"]]) == ("completed", ["replica"])
    else:
        assert not explained.placements


async def test_text_in_a_header_of_its_reaches_an_engine_here(mesh: Mesh, protocol: Protocol) -> None:
    """A caller may send header values that it decoded as text."""
    async with calling(protocol, mesh) as caller:
        answers = await caller.forward(x_session_id="セッション")
    assert answers[-1].ended.outcome == "completed"
    (received,) = caller.asked.engine.received
    assert received.headers["x-session-id"] == "セッション"


async def test_what_we_refuse_it_understands(mesh: Mesh, protocol: Protocol, tmp_path: Path) -> None:
    async with calling(protocol, mesh, write_policy(tmp_path, EU, accept=[AP])) as caller:
        (answer,) = await caller.forward()
    assert answer.refused.reason == "residency_not_accepted"


async def test_it_hears_our_heartbeats(mesh: Mesh, protocol: Protocol) -> None:
    async with calling(protocol, mesh) as caller:
        await caller.call("Ping")
        subscription = caller.call("Subscribe", gateway_id="us-1", place=caller.us())
        heartbeat = await anext(each async for each in subscription if each.accepting)
        subscription.cancel()
    assert (heartbeat.gateway_id, heartbeat.place.region) == ("eu-1", EU.region)
    assert [(each.model, each.replicas) for each in heartbeat.capacities] == [(MODEL, 1)]
