"""Clients, gateway and engines over real sockets, run the way a gateway runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO

import aiohttp
import openai
import pytest
from msgspec.structs import replace
from yarl import URL

from gateway.app.listening import server_limits, stop_server
from gateway.config.targets import Dialect
from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import AttemptConfig, ObservationConfig, PlacementConfig, QueueConfig
from gateway.core.kernel.description import describe, gauges_of
from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    ReplicaId,
    ReplicaObservation,
    RequestProfile,
    Standing,
    TargetKind,
)
from gateway.door.admin import GatewayAdminSources, make_admin_app
from gateway.door.api import ClientApi
from gateway.door.call import ClientCall
from gateway.door.settings import HttpSettings
from gateway.engines.client import ClientSettings, EngineClient
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.features.resume.continuation import keep_answer
from gateway.http1.server import HttpServer
from gateway.request.answer import AnswerSettings
from gateway.request.driver import Driver, GatewayStep, GatewaySubscriptions
from gateway.request.event_scanner import EventScanner
from gateway.request.legs import RequestSummary
from gateway.request.proxied import RequestContext
from mesh.admin_listening import ListenLimits, OperatorsServer, operators_runner
from mesh.clock import Clock
from mesh.steps import Step
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_MESSAGE_STREAM,
    GOOD_RESPONSE_STREAM,
    GOOD_STREAM,
    ROLE,
    FakeEngine,
    Script,
    Tally,
    answer,
    chat_chunk,
    error_event,
    hang_up,
    stream,
    stream_and_cut,
    stream_and_hang,
    stream_until,
    token,
)
from tests.support.core import EU, LAYERED, SECOND, US, policy, replica_spec, rule
from tests.support.descriptors import no_descriptor_left
from tests.support.gateways import until
from tests.support.listening import listening_protocols

GOOD = b"".join(GOOD_STREAM)
CHAT = "/v1/chat/completions"
BODY = b'{ "model": "llama", "messages": [{"role":"user","content":"hi"}], "stream": true }'
SETTINGS = HttpSettings(GatewayId("us-1"), US)
CORE = CoreConfig(
    placement=PlacementConfig(policy=LAYERED),  # one pending request is enough to make an engine busy
    attempt=AttemptConfig(attempts_max=2),
    queue=QueueConfig(length_max=5),
    observation=ObservationConfig(replica_stale_ns=3600 * SECOND),  # the test alone reports replicas' state
    resume=ResumeConfig(wait_max_ns=SECOND),
)
CONNECTION_BUFFERS_BYTES = 16 << 20
"""More than two sockets and the gateway's own buffers hold between them."""


class Edge:
    """A gateway's HTTP edge with the real core and two engines, `a` and `b`, and a record of its events."""

    def __init__(self, settings: HttpSettings, answer_settings: AnswerSettings) -> None:
        self.settings = settings
        self.answer_settings = answer_settings
        self.engines = {ReplicaId("a"): FakeEngine(), ReplicaId("b"): FakeEngine()}
        self.events: list[Event] = []
        self.arrived = Tally()
        self.finished: list[tuple[EndRequest, RequestSummary]] = []
        self.has_finished = Tally()
        self.clock = Clock()
        self.core = GatewayCore(GatewayId("us-1"), US, seed=1)
        self.subscriptions: GatewaySubscriptions = {Step: self._step_taken}
        self.driver = Driver(self.core, self.clock, observers=[self])
        self.url = ""

    def _step_taken(self, step: GatewayStep, _told: GatewayStep) -> None:
        self.events.append(step.event)
        if isinstance(step.event, events.RequestArrived):
            self.arrived.add()

    def on_finished(self, _profile: RequestProfile, end: EndRequest, summary: RequestSummary, _record: object) -> None:
        self.finished.append((end, summary))
        self.has_finished.add()

    def configure(self) -> None:
        self.driver.submit(events.ConfigApplied(CORE))
        self.driver.submit(events.PolicyApplied(policy(US)))
        self.driver.submit(events.AssignmentApplied(1, tuple(replica_spec(name) for name in self.engines), ()))
        self.probe(waiting=0)

    def probe(self, *, waiting: int) -> None:
        now_ns = self.clock.now_ns()
        seen = tuple(ReplicaObservation(name, now_ns, healthy=True, waiting=waiting) for name in self.engines)
        self.driver.submit(events.ReplicasObserved(seen))

    def plays(self, *scripts: Script) -> None:
        """Answer the next requests with these scripts in order, whichever engine gets them."""
        left = list(scripts)

        async def next_script(exchange: object) -> None:
            await left.pop(0)(exchange)  # type: ignore[arg-type]

        for engine in self.engines.values():
            engine.plays(next_script)

    @property
    def address(self) -> tuple[str, int]:
        url = URL(self.url)
        assert url.host is not None
        assert url.port is not None
        return url.host, url.port

    @property
    def results(self) -> list[LegResult]:
        return [event.result for event in self.events if isinstance(event, events.LegEnded)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [end.outcome for end, _ in self.finished]

    def received(self) -> list[dict[str, str]]:
        return [each.headers for engine in self.engines.values() for each in engine.received]

    async def arrives_at_an_engine(self) -> FakeEngine:
        await self.arrived.reaches(1)
        while True:
            for engine in self.engines.values():
                if engine.arrived.count:
                    return engine
            await asyncio.sleep(0.001)

    def check(self) -> None:
        gauges = gauges_of(self.core, self.clock.now_ns())
        assert (gauges.requests, gauges.attempts, self.driver.open_requests) == (0, 0, 0)
        assert not self.driver.failed.is_set(), self.driver.crash


@asynccontextmanager
async def serving(
    settings: HttpSettings = SETTINGS, answer_settings: AnswerSettings | None = None
) -> AsyncIterator[Edge]:
    edge = Edge(settings, answer_settings or AnswerSettings())
    async with AsyncExitStack() as stack:
        for engine in edge.engines.values():
            await stack.enter_async_context(engine.serving())
        endpoints = ReplicaEndpoints(
            ReplicaEndpoint(name, US, engine.url, Dialect.VLLM, "engine-key") for name, engine in edge.engines.items()
        )
        client = await stack.enter_async_context(
            EngineClient(endpoints, edge.clock, ClientSettings(), on_turn=edge.driver.run)
        )
        context = RequestContext(
            edge.driver,
            {TargetKind.REPLICA: client},
            edge.answer_settings,
            on_finished=edge.on_finished,
            keep_answer=keep_answer,
        )
        edge.configure()
        stack.callback(edge.driver.close)
        api = ClientApi(
            context,
            settings,
            edge.core.models_for,
            lambda: "draining" if edge.core.draining else "",
            clock=edge.clock,
            turn_over=edge.driver.run,
        )
        stack.callback(api.close)
        server = HttpServer(api, server_limits(settings), on_turn=edge.driver.run)
        port = await stack.enter_async_context(listening_protocols(server))
        stack.push_async_callback(stop_server, server, lambda: edge.driver.open_requests)
        edge.url = f"http://127.0.0.1:{port}"
        yield edge
        edge.check()


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    async with serving() as edge:
        yield edge


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(
    client: aiohttp.ClientSession, edge: Edge, body: bytes = BODY, path: str = CHAT, **headers: str
) -> tuple[aiohttp.ClientResponse, bytes]:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.post(edge.url + path, data=BytesIO(body), headers=sent) as response:
        return response, await response.read()


def error_code(body: bytes) -> object:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


class TestRelaying:
    async def test_a_stream_comes_through_byte_for_byte_and_says_where_it_ran(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        response, body = await ask(client, edge, x_request_id="req-1")
        assert (response.status, body) == (200, GOOD)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-request-id"] == "req-1"
        assert response.headers["x-nightside-region"] == "us-east-1"
        assert response.headers["x-nightside-gateway"] == "us-1"
        assert edge.outcomes == [Outcome.COMPLETED]

    @pytest.mark.parametrize("size", [1, 3, 64])
    async def test_hostile_pieces_change_nothing(self, edge: Edge, client: aiohttp.ClientSession, size: int) -> None:
        stream_bytes = b": keep-alive\r\n\r\n" + GOOD + b": bye\n\n"
        edge.plays(stream(*(stream_bytes[at : at + size] for at in range(0, len(stream_bytes), size))))
        assert (await ask(client, edge))[1] == stream_bytes

    async def test_the_body_arrives_as_sent_and_the_client_s_credentials_do_not(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        await ask(
            client, edge, authorization="Bearer client", x_api_key="client", cookie="a=b", x_nightside_tenant="acme"
        )
        (received,) = [each for engine in edge.engines.values() for each in engine.received]
        assert received.body == BODY
        assert received.headers["authorization"] == "Bearer engine-key"
        assert not {"x-api-key", "cookie", "x-nightside-tenant"} & set(received.headers)

    async def test_a_whole_answer_keeps_its_length(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.plays(answer())
        response, body = await ask(client, edge)
        assert body == GOOD_ANSWER
        assert response.headers["content-length"] == str(len(GOOD_ANSWER))
        assert edge.finished[0][1].cached_tokens == 16

    async def test_large_bodies_and_answers_pass(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        tokens = tuple(token("x" * 1000) for _ in range(3000))
        edge.plays(stream(ROLE, b"".join(tokens), *GOOD_STREAM[2:]))
        body = BODY[:-1] + b', "pad": "' + b"y" * 3_000_000 + b'"}'
        assert (await ask(client, edge, body))[1] == ROLE + b"".join(tokens) + b"".join(GOOD_STREAM[2:])

    async def test_an_id_that_is_running_is_not_used_twice(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        gate = asyncio.Event()
        edge.plays(stream_until(gate, (ROLE, token("x")), GOOD_STREAM[2:]), stream(*GOOD_STREAM))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(client, edge, x_request_id="same"))
            await edge.arrives_at_an_engine()
            second = await ask(client, edge, x_request_id="same")
            gate.set()
        assert second[0].headers["x-request-id"] != "same"
        assert first.result()[0].headers["x-request-id"] == "same"

    async def test_an_id_that_another_request_took_during_an_upload_is_not_used_twice(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        gate = asyncio.Event()
        edge.plays(stream_until(gate, (ROLE, token("x")), GOOD_STREAM[2:]), stream(*GOOD_STREAM))
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: same\r\nexpect: 100-continue\r\n"
            f"connection: close\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(*edge.address)
        writer.write(head.encode())
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        async with asyncio.TaskGroup() as tasks:
            taker = tasks.create_task(ask(client, edge, x_request_id="same"))
            await edge.arrives_at_an_engine()
            writer.write(BODY)
            answered = await reader.read()
            gate.set()
        writer.close()
        await writer.wait_closed()
        assert answered.startswith(b"HTTP/1.1 200 ")
        assert b"x-request-id: same" not in answered
        assert taker.result()[0].headers["x-request-id"] == "same"


class TestSdk:
    @asynccontextmanager
    async def sdk(self, edge: Edge) -> AsyncIterator[openai.AsyncOpenAI]:
        async with openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key="client", max_retries=0) as sdk:
            yield sdk

    async def test_streams(self, edge: Edge) -> None:
        async with self.sdk(edge) as sdk:
            chunks = await sdk.chat.completions.create(
                model="llama", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            said = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
        assert "".join(filter(None, said)) == "Hello world"

    async def test_whole_answers(self, edge: Edge) -> None:
        edge.plays(answer())
        async with self.sdk(edge) as sdk:
            whole = await sdk.chat.completions.create(model="llama", messages=[{"role": "user", "content": "hi"}])
        assert whole.choices[0].message.content == "Hello"
        assert whole._request_id == edge.finished[0][0].request_id

    async def test_errors(self, edge: Edge) -> None:
        async with self.sdk(edge) as sdk:
            with pytest.raises(openai.NotFoundError) as caught:
                await sdk.chat.completions.create(model="nope", messages=[])
        assert caught.value.code == "model_not_found"
        assert caught.value.request_id

    async def test_a_stream_that_fails_raises_and_never_just_ends(self, edge: Edge) -> None:
        edge.plays(stream_and_cut(ROLE, token("x")))
        async with self.sdk(edge) as sdk:
            chunks = await sdk.chat.completions.create(model="llama", messages=[], stream=True)
            with pytest.raises(openai.APIError) as caught:
                _ = [chunk async for chunk in chunks]
        assert caught.value.code == "engine_failed_midstream"

    async def test_models_are_listed(self, edge: Edge) -> None:
        async with self.sdk(edge) as sdk:
            assert [model.id async for model in await sdk.models.list()] == ["llama"]
            assert (await sdk.models.retrieve("llama")).id == "llama"
            with pytest.raises(openai.NotFoundError):
                await sdk.models.retrieve("nope")


class TestTryingAgain:
    @pytest.mark.parametrize(
        "bad",
        [
            hang_up,
            answer(500, b"oops"),
            answer(503, b"full"),
            stream(error_event(503), DONE),
            stream(DONE),
            stream(ROLE, chat_chunk({"content": ""}, "abort"), DONE),
            stream_and_cut(ROLE),
        ],
    )
    async def test_before_the_first_byte_the_other_engine_answers(
        self, edge: Edge, client: aiohttp.ClientSession, bad: Script
    ) -> None:
        edge.plays(bad, stream(*GOOD_STREAM))
        response, body = await ask(client, edge, x_request_id="r")
        assert (response.status, body) == (200, GOOD)
        assert len(edge.results) == 2
        assert {len(engine.received) for engine in edge.engines.values()} == {1}
        assert {headers["x-request-id"] for headers in edge.received()} == {"r", "r-2"}

    async def test_when_both_fail_it_is_a_502(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.plays(hang_up, hang_up)
        response, body = await ask(client, edge)
        assert (response.status, error_code(body)) == (502, "engine_failed")
        assert b"127.0.0.1" not in body

    @pytest.mark.parametrize("bad", [stream_and_cut(ROLE, token("x")), stream(ROLE, token("x"), error_event(500))])
    async def test_after_the_first_byte_the_stream_says_that_it_failed(
        self, edge: Edge, client: aiohttp.ClientSession, bad: Script
    ) -> None:
        edge.plays(bad)
        response, body = await ask(client, edge)
        assert response.status == 200
        sent, error, done, rest = body.removeprefix(ROLE).split(b"\n\n")
        assert sent + b"\n\n" == token("x")
        assert error_code(error.removeprefix(b"data: ")) == "engine_failed_midstream"
        assert (done, rest) == (b"data: [DONE]", b"")
        assert edge.outcomes == [Outcome.FAILED_MIDSTREAM]

    async def test_half_of_a_whole_answer_never_looks_complete(self, client: aiohttp.ClientSession) -> None:
        async def half(exchange) -> None:  # type: ignore[no-untyped-def]
            await exchange.head(200, {"content-type": "application/json"})
            await exchange.send(GOOD_ANSWER[:50])
            await asyncio.sleep(0.01)
            exchange.cut()

        async with serving(answer_settings=AnswerSettings(held_bytes_max=10)) as edge:
            edge.plays(half)
            with pytest.raises(aiohttp.ClientPayloadError):
                await ask(client, edge)
            await edge.has_finished.reaches(1)
            assert edge.outcomes == [Outcome.FAILED_MIDSTREAM]

    async def test_a_client_s_fault_is_the_engine_s_to_explain(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        explained = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'
        edge.plays(answer(400, explained))
        response, body = await ask(client, edge)
        assert (response.status, body) == (400, explained)
        assert edge.results == [LegResult.CLIENT_ERROR]

    async def test_no_descriptor_for_an_engine_is_an_error_of_ours(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        """A connected client gets the error, and it counts against no engine."""
        edge.plays(stream(*GOOD_STREAM))
        async with client.get(f"{edge.url}/v1/models") as response:
            assert response.status == 200
        with no_descriptor_left():
            response, body = await ask(client, edge)
        assert (response.status, error_code(body)) == (500, "internal_error")
        assert edge.results == [LegResult.INTERNAL]
        assert edge.outcomes[-1] is Outcome.FAILED_INTERNALLY
        assert {state.standing for state in edge.core.replicas} == {Standing.AVAILABLE}
        assert (await ask(client, edge))[1] == GOOD

    @pytest.mark.parametrize("begun", [False, True])
    async def test_an_error_of_ours_in_a_leg_is_told_as_such(
        self, edge: Edge, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, begun: bool
    ) -> None:
        original = EventScanner.feed

        def fail(scanner: EventScanner, data: bytes) -> bytes:
            if scanner.saw_token is begun:
                raise KeyError("ours")
            return original(scanner, data)

        monkeypatch.setattr(EventScanner, "feed", fail)
        gate = asyncio.Event()
        edge.plays(stream_until(gate, (ROLE, token("x")), GOOD_STREAM[2:]))
        async with client.post(edge.url + CHAT, data=BODY) as response:
            gate.set()
            body = await response.read()
        assert response.status == (200 if begun else 500)
        assert b'"code":"internal_error"' in body
        assert edge.results == [LegResult.INTERNAL]
        assert {state.standing for state in edge.core.replicas} == {Standing.AVAILABLE}

    async def test_a_fault_of_ours_after_the_first_byte_adds_no_second_answer(
        self, edge: Edge, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(ClientCall, "_settle", fail)
        edge.plays(stream(*GOOD_STREAM))
        async with client.post(edge.url + CHAT, data=BODY) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()

    async def test_what_we_say_of_limits_and_time_replaces_what_an_engine_says(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        edge.plays(answer(date="Thu, 01 Jan 1970 00:00:00 GMT"))
        response, _ = await ask(client, edge)
        assert len(response.headers.getall("date")) == 1
        assert "1970" not in response.headers["date"]


class TestRefusing:
    async def refused(
        self, client: aiohttp.ClientSession, edge: Edge, body: bytes = BODY, path: str = CHAT, **headers: str
    ) -> tuple[int, object, aiohttp.ClientResponse]:
        response, answer_body = await ask(client, edge, body, path, **headers)
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"]
        assert response.headers["x-nightside-gateway"] == "us-1"
        return response.status, error_code(answer_body), response

    @pytest.mark.parametrize(
        ("body", "path", "expected"),
        [
            (b"{", CHAT, (400, "invalid_json")),
            (b"{}", CHAT, (400, "invalid_field")),
            (b'{"model":"nope","messages":[]}', CHAT, (404, "model_not_found")),
            (BODY, "/v1/nothing", (404, "not_found")),
            (BODY, "/v1/models", (405, "method_not_allowed")),
            (b'{"model":"llama","kv_transfer_params":{}}', CHAT, (400, "unsupported_parameter")),
        ],
    )
    async def test_each_refusal_has_its_code(
        self, edge: Edge, client: aiohttp.ClientSession, body: bytes, path: str, expected: tuple[int, str]
    ) -> None:
        assert (await self.refused(client, edge, body, path))[:2] == expected
        assert edge.received() == []

    async def test_a_full_queue(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.probe(waiting=5)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(ask(client, edge)) for _ in range(5)]
            await edge.arrived.reaches(5)
            status, code, response = await self.refused(client, edge)
            assert (status, code) == (503, "queue_full")
            assert float(response.headers["retry-after"]) > 0
            edge.probe(waiting=0)
        assert {task.result()[0].status for task in waiting} == {200}

    async def test_a_gateway_that_drains(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.driver.submit(events.DrainRequested())
        status, code, response = await self.refused(client, edge)
        assert (status, code) == (503, "draining")
        assert response.headers["connection"] == "close"
        async with client.get(f"{edge.url}/ready") as ready, client.get(f"{edge.url}/health") as live:
            assert (ready.status, live.status) == (503, 200)

    async def test_a_region_that_may_not_see_the_request(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.driver.submit(events.PolicyApplied(policy(US, process=rule(EU))))
        assert (await self.refused(client, edge))[:2] == (421, "residency_ingress")

    async def test_a_body_too_large(self, client: aiohttp.ClientSession) -> None:
        async with serving(replace(SETTINGS, body_bytes_max=1000)) as edge:
            body = BODY + b" " * 2000
            assert (await self.refused(client, edge, body))[:2] == (413, "body_too_large")

    async def test_more_requests_than_there_is_room_for(self, client: aiohttp.ClientSession) -> None:
        async with serving(replace(SETTINGS, requests_max=1)) as edge:
            gate = asyncio.Event()
            edge.plays(stream_until(gate, (ROLE, token("x")), GOOD_STREAM[2:]))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask(client, edge))
                await edge.arrives_at_an_engine()
                assert (await self.refused(client, edge))[:2] == (503, "gateway_full")
                gate.set()

    async def test_a_body_of_unknown_length_takes_only_the_room_it_needs(self, client: aiohttp.ClientSession) -> None:
        async def upload() -> AsyncIterator[bytes]:
            yield BODY

        async with serving(replace(SETTINGS, body_bytes_max=1000, bodies_bytes_max=1500)) as edge:
            gate = asyncio.Event()
            edge.plays(stream_until(gate, (ROLE, token("x")), GOOD_STREAM[2:]), stream(*GOOD_STREAM))
            async with client.post(edge.url + CHAT, data=upload()) as first:
                assert await first.content.readany()
                async with client.post(edge.url + CHAT, data=upload()) as second:
                    assert second.status == 200
                gate.set()
                assert (await first.read()).endswith(DONE)

    async def test_a_body_that_never_comes(self) -> None:
        async with serving(replace(SETTINGS, stall_s=0.01)) as edge:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(edge.url.rpartition(":")[2]))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
            assert b" 408 " in await reader.readline()
            writer.close()

    async def test_a_header_too_large(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        async with client.post(edge.url + CHAT, data=BODY, headers={"x-long": "y" * 20_000}) as response:
            assert response.status == 431


RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
RESPONSE_BODY = b'{"model":"llama","input":"hi","stream":true}'
OF_THE_APIS = [
    pytest.param(CHAT, BODY, (ROLE, token("x")), id="chat"),
    pytest.param(RESPONSES, RESPONSE_BODY, GOOD_RESPONSE_STREAM[:2], id="responses"),
    pytest.param(MESSAGES, BODY, GOOD_MESSAGE_STREAM[:3], id="messages"),
]


class TestBehindTheLastEvent:
    """A client may close before the response has ended; an engine may take its time to end it."""

    @pytest.mark.parametrize(
        ("path", "body", "pieces"),
        [
            (CHAT, BODY, GOOD_STREAM),
            (RESPONSES, RESPONSE_BODY, GOOD_RESPONSE_STREAM),
            (MESSAGES, BODY, GOOD_MESSAGE_STREAM),
        ],
    )
    async def test_whoever_leaves_there_has_its_answer(
        self, edge: Edge, client: aiohttp.ClientSession, path: str, body: bytes, pieces: tuple[bytes, ...]
    ) -> None:
        edge.plays(*[stream_and_hang(*pieces)] * 5)
        for number in range(1, 6):
            async with client.post(edge.url + path, data=BytesIO(body)) as response:
                assert await response.content.readexactly(len(b"".join(pieces))) == b"".join(pieces)
                response.close()
            await edge.has_finished.reaches(number)
            edge.probe(waiting=0)
        assert edge.outcomes == [Outcome.COMPLETED] * 5
        assert edge.results == [LegResult.COMPLETED] * 5
        assert [summary.output_tokens for _, summary in edge.finished] == [6] * 5

    async def test_the_core_is_done_with_it_while_the_engine_takes_its_time(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        go_on = asyncio.Event()
        edge.plays(stream_until(go_on, GOOD_STREAM))
        async with client.post(edge.url + CHAT, data=BytesIO(BODY)) as response:
            assert await response.content.readexactly(len(GOOD)) == GOOD
            await until(lambda: edge.results == [LegResult.COMPLETED])
            assert edge.driver.open_requests == 1
            go_on.set()
            assert await response.read() == b""
        assert edge.outcomes == [Outcome.COMPLETED]


class TestWhoAnswers:
    async def test_no_answer_names_what_it_is_written_in(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        edge.plays(stream(*GOOD_STREAM), answer(400, b"{}", server="engine/1.2"))
        responses = [(await ask(client, edge))[0], (await ask(client, edge))[0], (await ask(client, edge, b"{"))[0]]
        for path in ("/health", "/ready", "/v1/models", "/openapi.yaml", "/nowhere"):
            async with client.get(edge.url + path) as response:
                responses.append(response)
        assert {response.headers.get("server", "nightside") for response in responses} == {"nightside"}
        reader, writer = await asyncio.open_connection(*edge.address)
        writer.write(b"GET / HTTP/9.9\r\nhost: x\r\n\r\n")
        told = await reader.read()
        writer.close()
        assert b" 400 " in told.partition(b"\r\n")[0]
        assert b"python" not in told.lower()


class TestOtherApis:
    @pytest.mark.parametrize(("path", "pieces"), [(RESPONSES, GOOD_RESPONSE_STREAM), (MESSAGES, GOOD_MESSAGE_STREAM)])
    @pytest.mark.parametrize("size", [1, 7, 10_000])
    async def test_their_streams_come_through_byte_for_byte(
        self, edge: Edge, client: aiohttp.ClientSession, path: str, pieces: tuple[bytes, ...], size: int
    ) -> None:
        stream_bytes = b": keep-alive\n\n" + b"".join(pieces) + b": bye\n\n"
        edge.plays(stream(*(stream_bytes[at : at + size] for at in range(0, len(stream_bytes), size))))
        response, answered = await ask(client, edge, RESPONSE_BODY, path)
        assert (response.status, answered) == (200, stream_bytes)
        assert edge.outcomes == [Outcome.COMPLETED]
        assert edge.finished[0][1].prompt_tokens == 22

    @pytest.mark.parametrize(("path", "body", "begun"), OF_THE_APIS)
    async def test_what_breaks_off_says_so_in_an_event_of_its_own_kind(
        self, edge: Edge, client: aiohttp.ClientSession, path: str, body: bytes, begun: tuple[bytes, ...]
    ) -> None:
        edge.plays(stream_and_cut(*begun))
        _, answered = await ask(client, edge, body, path, x_request_id="r1")
        told = answered.removeprefix(b"".join(begun))
        assert len(told) < len(answered)
        data = json.loads(next(line for line in told.splitlines() if line.startswith(b"data: "))[6:])
        assert data["error"]["code"] == "engine_failed_midstream"
        assert told.startswith(b"data: " if path == CHAT else b"event: error\ndata: ")
        assert told.endswith(DONE) == (path == CHAT)
        assert data.get("type") == (None if path == CHAT else "error")
        assert data.get("sequence_number") == (len(begun) if path == RESPONSES else None)
        assert data.get("request_id") == ("r1" if path == MESSAGES else None)

    @pytest.mark.parametrize(("path", "body", "begun"), OF_THE_APIS)
    async def test_what_breaks_off_before_a_token_is_had_elsewhere(
        self, edge: Edge, client: aiohttp.ClientSession, path: str, body: bytes, begun: tuple[bytes, ...]
    ) -> None:
        whole = {CHAT: GOOD_STREAM, RESPONSES: GOOD_RESPONSE_STREAM, MESSAGES: GOOD_MESSAGE_STREAM}[path]
        edge.plays(stream_and_cut(*begun[:-1]), stream(*whole))
        assert (await ask(client, edge, body, path))[1] == b"".join(whole)
        assert len(edge.results) == 2

    async def test_calls_about_a_stored_response_reach_the_engine_that_made_it(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        made = b'{"id":"resp_1","object":"response","status":"completed","error":null}'
        edge.plays(*[answer(200, made)] * 4)
        await ask(client, edge, b'{"model":"llama","input":"hi"}', RESPONSES)
        calls = [("GET", "?stream=false"), ("DELETE", ""), ("POST", "/cancel")]
        for method, more in calls:
            async with client.request(method, f"{edge.url}{RESPONSES}/resp_1{more}") as response:
                assert (response.status, await response.read()) == (200, made)
        (engine,) = [each for each in edge.engines.values() if each.received]
        assert [(each.method, each.path) for each in engine.received[1:]] == [
            (method, f"{RESPONSES}/resp_1{more}") for method, more in calls
        ]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/responses/resp_2"),
            ("DELETE", "/v1/responses/resp_2"),
            ("POST", "/v1/responses/resp_2/cancel"),
            ("GET", "/v1/responses/a%2Fb"),
            ("GET", "/v1/responses/" + "a" * 200),
        ],
    )
    async def test_what_nobody_made_here_is_not_known(
        self, edge: Edge, client: aiohttp.ClientSession, method: str, path: str
    ) -> None:
        code = "not_found" if "%2F" in path else "response_not_found"
        async with client.request(method, URL(edge.url + path, encoded=True)) as response:
            assert (response.status, error_code(await response.read())) == (404, code)
        assert edge.received() == []

    async def test_an_engine_s_error_is_told_in_the_shape_of_messages(
        self, edge: Edge, client: aiohttp.ClientSession
    ) -> None:
        edge.plays(answer(400, b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'))
        response, body = await ask(client, edge, BODY, MESSAGES, x_request_id="r1")
        assert response.headers["content-length"] == str(len(body))
        assert response.headers["request-id"] == "r1"
        document = json.loads(body)
        assert (document["type"], document["error"]["message"]) == ("error", "too long")
        assert edge.outcomes == [Outcome.CLIENT_ERROR]

    @pytest.mark.parametrize(
        "path", ["/v1/messages/nothing", "/v1/messages", "/v1/nothing", "/v1/models", "/v1/models/x"]
    )
    async def test_every_answer_names_its_request(self, edge: Edge, client: aiohttp.ClientSession, path: str) -> None:
        async with client.get(edge.url + path, headers={"x-request-id": "r1"}) as response:
            assert response.headers["x-request-id"] == "r1"
            assert response.headers["x-nightside-gateway"] == "us-1"
            assert ("request-id" in response.headers) == path.startswith(MESSAGES)
            if path == MESSAGES:
                assert (response.status, response.headers["allow"]) == (405, "POST")


class TestOtherPages:
    async def test_live_and_ready(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        for engine in edge.engines:
            edge.driver.submit(
                events.ReplicasObserved((ReplicaObservation(engine, edge.clock.now_ns(), healthy=False),))
            )
        for path in ("/health", "/ready"):
            async with client.get(edge.url + path) as response:
                assert response.status == 200

    async def test_operators_see_metrics_and_state(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        async def nothing(*_: object) -> None:
            return None

        sources = GatewayAdminSources(
            metrics=lambda: b"up 1\n",
            metrics_content_type="text/plain; version=0.0.4",
            state=lambda: describe(edge.core, edge.clock.now_ns()),
            readiness=str,
            explain=nothing,
            drain=nothing,
            undrain=nothing,
            overview=dict,
            notes=dict,
        )
        async with AsyncExitStack() as stack:
            runner = operators_runner(make_admin_app(sources))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            assert runner.server is not None
            server = OperatorsServer(runner.server, ListenLimits())
            stack.callback(server.close)
            url = f"http://127.0.0.1:{await stack.enter_async_context(listening_protocols(server))}"
            async with client.get(f"{url}/metrics") as metrics, client.get(f"{url}/admin/state") as state:
                assert (await metrics.read(), metrics.content_type) == (b"up 1\n", "text/plain")
                assert (await state.json())["gateway"] == "us-1"
            async with client.get(f"{url}/ready") as ready, client.post(url + CHAT, data=BODY) as generate:
                assert (ready.status, generate.status) == (200, 404)


class TestManyAtOnce:
    async def test_nothing_is_lost_and_somebody_is_served(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        scripts: Iterable[Script] = (
            stream(*GOOD_STREAM),
            stream(*GOOD_STREAM),
            stream(*GOOD_STREAM),
            stream_and_cut(ROLE),
            answer(503, b"full"),
            stream_and_cut(ROLE, token("x")),
            answer(),
        )
        for engine in edge.engines.values():
            engine.plays(*[script for script in scripts for _ in range(10)], stream(*GOOD_STREAM))

        async def keep_probing() -> None:
            while True:
                edge.probe(waiting=0)
                await asyncio.sleep(0.005)

        async def keep_asking() -> list[int]:
            return [(await ask(client, edge))[0].status for _ in range(10)]

        async with asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(keep_probing())
            asking = [tasks.create_task(keep_asking()) for _ in range(5)]
            statuses = [status for task in asking for status in await task]
            probing.cancel()
        await edge.has_finished.reaches(50)
        assert len(statuses) == 50
        assert statuses.count(200) > 25
        assert set(statuses) <= {200, 502, 503}
        started = sum(len(engine.received) for engine in edge.engines.values())
        assert len(edge.results) == started
