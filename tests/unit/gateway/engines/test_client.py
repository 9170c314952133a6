from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import zlib
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from gateway.config.targets import Dialect
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import (
    Extra,
    LegResult,
    LegRole,
    ReplicaId,
    replica_target,
)
from gateway.engines import client as client_module
from gateway.engines.client import ClientSettings, EngineClient, EngineLeg, RefusedLeg, _result_of
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.request.engine_api import TOKENIZE_PATH
from gateway.request.legs import STOPPED, CacheSalt, Headers, LegFailure, LegHandle, OutboundRequest
from mesh.clock import Clock
from tests.fakes import engine as fakes
from tests.fakes.engine import Exchange, FakeEngine
from tests.support.core import SECOND, US, profile
from tests.support.descriptors import no_descriptor_left
from tests.support.gateways import until
from tests.support.listeners import Heard
from tests.support.orders import leg_order

PATH = "/v1/chat/completions"
HEADERS = (("content-type", "application/json"), ("x-request-id", "r1"))


def order(replica: str = "a", attempt: int = 1) -> StartLeg:
    deadline_ns = Clock().now_ns() + 60 * SECOND
    return leg_order("r1", 1, replica_target(ReplicaId(replica)), attempt, deadline_ns=deadline_ns)


class Bench:
    """One engine and a client that knows it as replica `a`."""

    def __init__(
        self, engine: FakeEngine, client: EngineClient, endpoints: ReplicaEndpoints, turns: list[bool]
    ) -> None:
        self.engine = engine
        self.client = client
        self.endpoints = endpoints
        endpoint = endpoints.get(ReplicaId("a"))
        assert endpoint is not None
        self.endpoint = endpoint
        self.turns = turns

    def open(
        self,
        *,
        replica: str = "a",
        attempt: int = 1,
        body: bytes = b"{}",
        cache_salt: CacheSalt | None = None,
        listener: Heard | None = None,
    ) -> Heard:
        """Open a leg; the listener has its handle."""
        request = OutboundRequest(profile("r1"), PATH, HEADERS, body, cache_salt=cache_salt)
        return self.send(order(replica, attempt), request, listener)

    def send(self, start: StartLeg, request: OutboundRequest, listener: Heard | None = None) -> Heard:
        heard = listener or Heard()
        heard.handle = self.client.open(start, request, heard)
        assert not heard.told, "a leg never calls from inside open"
        return heard

    async def read(
        self, *, replica: str = "a", attempt: int = 1, body: bytes = b"{}", cache_salt: CacheSalt | None = None
    ) -> bytes:
        """Body of a leg's whole answer. Raises LegFailure, or the fault."""
        return await self.open(replica=replica, attempt=attempt, body=body, cache_salt=cache_salt).whole()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with FakeEngine().serving() as engine:
        endpoints = ReplicaEndpoints([ReplicaEndpoint(ReplicaId("a"), US, engine.url, Dialect.VLLM, "the-key")])
        turns: list[bool] = []
        async with EngineClient(endpoints, Clock(), ClientSettings(), on_turn=lambda: turns.append(True)) as client:
            yield Bench(engine, client, endpoints, turns)


class TestAnswers:
    async def test_head_place_and_bytes_come_through(self, bench: Bench) -> None:
        leg = bench.open()
        assert await leg.whole() == b"".join(fakes.GOOD_STREAM)
        assert leg.head.status == 200
        assert ("text/event-stream; charset=utf-8") in dict(leg.head.headers).values()
        assert (leg.head.ran_at.replica_id, leg.head.ran_at.place) == ("a", US)
        assert (leg.head.attempt, leg.head.leg) == (1, 1)
        assert leg.told[0] == "head"
        assert "accepted" not in leg.told, "the first output says so"
        assert bench.turns

    @pytest.mark.parametrize("role,identity", [(LegRole.WHOLE, "/mnt/d/m"), (LegRole.DECODE, "/mnt/p/m")])
    async def test_the_head_tells_the_model_that_the_request_was_placed_by(
        self, bench: Bench, role: LegRole, identity: str
    ) -> None:
        model = profile("r1").model
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, identities={model: "/mnt/d/m"})])
        answers_as = "/mnt/p/m" if role is LegRole.DECODE else ""
        leg = bench.send(
            replace(order(), role=role, answers_as=answers_as), OutboundRequest(profile("r1"), PATH, HEADERS, b"{}")
        )
        await leg.whole()
        assert leg.head.identity == identity

    async def test_the_engine_sees_the_body_as_it_was_and_the_gateway_s_own_key(self, bench: Bench) -> None:
        await bench.read(body=b'{ "odd" :  "spacing" }')
        (received,) = bench.engine.received
        assert (received.path, received.body) == (PATH, b'{ "odd" :  "spacing" }')
        assert received.headers["authorization"] == "Bearer the-key"
        assert received.headers["x-request-id"] == "r1"
        assert "user-agent" not in received.headers

    @pytest.mark.parametrize("takes,arrives", [(True, b'{"cache_salt":"5a17", "odd" :  1}'), (False, b'{ "odd" :  1}')])
    async def test_an_engine_that_can_is_told_whose_cache_it_is(
        self, bench: Bench, takes: bool, arrives: bytes
    ) -> None:
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, takes_cache_salt=takes)])
        salt = CacheSalt("5a17", replaces_own=False)
        await bench.read(body=b'{ "odd" :  1}', cache_salt=salt)
        assert bench.engine.received[0].body == arrives

    async def test_a_salt_of_the_client_s_gives_way(self, bench: Bench) -> None:
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, takes_cache_salt=True)])
        body = b'{"cache_salt":"mine", "text":"' + b"x" * 100_000 + b'"}'
        await bench.read(body=body, cache_salt=CacheSalt("5a17", replaces_own=True))
        assert bench.engine.received[0].body == body.replace(b"mine", b"5a17")

    async def test_an_engine_that_can_is_asked_for_what_is_wanted_besides_and_the_answer_says_so(
        self, bench: Bench
    ) -> None:
        wanted = replace(order(), extras=(Extra.USAGE, Extra.TOKEN_IDS))
        salt = CacheSalt("5a17", replaces_own=False)
        asked = OutboundRequest(profile("r1"), PATH, HEADERS, b'{"model":"m"}', cache_salt=salt)
        expected = {
            Dialect.VLLM: b'"stream_options":{"include_usage":true},"return_token_ids":true,"cache_salt":"5a17",',
            Dialect.LLAMACPP: b'"stream_options":{"include_usage":true},',
            Dialect.OPENAI: b"",
        }
        for dialect, told in expected.items():
            takes_salt = b"cache_salt" in told
            bench.endpoints.replace([dataclasses.replace(bench.endpoint, dialect=dialect, takes_cache_salt=takes_salt)])
            leg = bench.send(wanted, asked)
            assert await leg.whole()
            assert len(leg.head.extras) == told.count(b"true")
            assert bench.engine.received[-1].body == b"{%b" % told + b'"model":"m"}'

    async def test_whoever_wants_no_stream_is_told_its_usage_unasked(self, bench: Bench) -> None:
        wanted = replace(order(), extras=(Extra.USAGE,))
        asked = OutboundRequest(replace(profile("r1"), stream=False), PATH, HEADERS, b'{"model":"m"}')
        leg = bench.send(wanted, asked)
        await leg.whole()
        assert leg.head.extras == ()
        assert bench.engine.received[-1].body == b'{"model":"m"}'

    async def test_a_large_body_arrives_whole(self, bench: Bench) -> None:
        body = bytes(range(256)) * 12_000
        await bench.read(body=body)
        assert bench.engine.received[0].body == body

    async def test_a_later_attempt_has_an_id_of_its_own(self, bench: Bench) -> None:
        await bench.read(attempt=2)
        assert bench.engine.received[0].headers["x-request-id"] == "r1-2"

    @pytest.mark.parametrize("quoted", [600 << 10, 2 << 20])
    async def test_an_error_that_quotes_a_long_request_is_about_the_request(self, bench: Bench, quoted: int) -> None:
        bench.engine.plays(fakes.answer(400, b'{"error":{"message":"no: %b"}}' % (b"x" * quoted)))
        leg = bench.open()
        told = await leg.whole()
        assert leg.head.status == 400
        assert b"The engine answered with status 400." in told

    async def test_an_error_is_an_answer_but_not_an_acceptance(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(503, b"full", **{"retry-after": "3"}))
        leg = bench.open()
        body = await leg.whole()
        assert leg.told == ["head", "data", "end"]
        assert leg.head.status == 503
        headers = {name.lower(): value for name, value in leg.head.headers}
        assert (headers["retry-after"], headers["content-type"]) == ("3", "application/json")
        assert json.loads(body)["error"]["message"] == "full"
        assert headers["content-length"] == str(len(body))

    async def test_a_rank_is_asked_for_by_header(self, bench: Bench) -> None:
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, ranks=2, rank=1)])
        await bench.read()
        assert bench.engine.received[0].headers["x-data-parallel-rank"] == "1"

    async def test_a_redirect_is_not_followed(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(307, b"", location=bench.engine.url))
        leg = bench.open()
        assert await leg.whole() == b""
        assert leg.head.status == 307
        assert len(bench.engine.received) == 1

    async def test_a_compressed_answer_is_a_failure_since_it_was_asked_not_to_be(self, bench: Bench) -> None:
        packed = zlib.compress(fakes.GOOD_ANSWER)
        bench.engine.plays(fakes.answer(200, packed, **{"content-encoding": "deflate"}))
        with pytest.raises(LegFailure, match="deflate"):
            await bench.read()
        assert bench.engine.received[0].headers["accept-encoding"] == "identity"


class TestMethods:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/responses/resp_1?stream=true&include%5B%5D=a"),
            ("DELETE", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
        ],
    )
    async def test_a_call_without_a_body_goes_out_as_it_is(self, bench: Bench, method: str, path: str) -> None:
        request = OutboundRequest(profile("r1"), path, HEADERS, b"", method)
        await bench.send(order(), request).whole()
        (received,) = bench.engine.received
        assert (received.method, received.path.replace("[]", "%5B%5D"), received.body) == (method, path, b"")


class TestConnections:
    async def test_one_that_was_read_to_the_end_is_used_again(self, bench: Bench) -> None:
        for _ in range(3):
            await bench.read()
        assert len(bench.engine.connections) == 1

    async def test_leaving_midway_aborts_at_the_engine(self, bench: Bench) -> None:
        bench.engine.plays(
            fakes.stream_until(asyncio.Event(), (fakes.ROLE, fakes.token("x"))), fakes.stream(*fakes.GOOD_STREAM)
        )
        leg = bench.open()
        await leg.hears("data")
        leg.stop()
        await bench.engine.aborted.reaches(1)
        await bench.read()
        assert len(bench.engine.connections) == 2

    async def test_leaving_before_the_head_aborts_too(self, bench: Bench) -> None:
        bench.engine.plays(fakes.hang)
        leg = bench.open()
        await bench.engine.arrived.reaches(1)
        leg.stop()
        await bench.engine.aborted.reaches(1)
        assert leg.failure is STOPPED


class TestFailures:
    async def failure(self, bench: Bench, *, replica: str = "a") -> LegFailure:
        with pytest.raises(LegFailure) as caught:
            await bench.read(replica=replica)
        assert caught.value.result is LegResult.FAILED
        return caught.value

    async def test_a_replica_that_has_left_us_is_nobody_s_fault(self, bench: Bench) -> None:
        with pytest.raises(LegFailure) as caught:
            await bench.read(replica="b")
        assert caught.value.result is LegResult.BUSY

    async def test_an_engine_that_shuts_down_is_busy_and_left_alone(self, bench: Bench) -> None:
        words = b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}'
        bench.engine.plays(fakes.answer(500, words))
        with pytest.raises(LegFailure) as caught:
            await bench.read()
        assert caught.value.result is LegResult.BUSY
        assert bench.endpoints.is_closing(bench.engine.url, Clock().now_ns())

    async def test_a_rank_it_does_not_have_is_not_the_client_s_fault(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(400, b'{"object":"error","message":"routed_dp_rank=1 out of range [0, 1)"}'))
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, ranks=2, rank=1)])
        assert (await self.failure(bench)).detail == "status 400"

    async def test_an_error_without_end_is_what_its_status_says(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(500, b"x" * (2 << 20)))
        assert (await self.failure(bench)).detail == "status 500"

    async def test_nobody_listens(self, bench: Bench) -> None:
        bench.endpoints.replace([ReplicaEndpoint(ReplicaId("a"), US, "http://127.0.0.1:1", Dialect.VLLM)])
        assert "no answer" in (await self.failure(bench)).detail

    async def test_the_connection_is_cut_before_an_answer(self, bench: Bench) -> None:
        bench.engine.plays(fakes.hang_up)
        assert "no answer" in (await self.failure(bench)).detail

    async def test_the_answer_is_no_http(self, bench: Bench) -> None:
        async def garbage(exchange: Exchange) -> None:
            await exchange.raw(b"220 mail.example.net ESMTP\r\n\r\n")
            await asyncio.Event().wait()

        bench.engine.plays(garbage)
        assert "no answer" in (await self.failure(bench)).detail

    async def test_the_answer_breaks_off(self, bench: Bench) -> None:
        bench.engine.plays(fakes.stream_and_cut(fakes.ROLE, fakes.token("x")))
        assert "broke off" in (await self.failure(bench)).detail

    @pytest.mark.parametrize("status", [200, 400])
    async def test_a_body_shorter_than_it_says(self, bench: Bench, status: int) -> None:
        async def short(exchange: Exchange) -> None:
            await exchange.head(status, {"content-length": "100"})
            await exchange.send(b"x" * 50)
            exchange.cut()

        bench.engine.plays(short)
        assert "broke off" in (await self.failure(bench)).detail


class TestErrorsOfOurs:
    """Internal errors, which do not count against the engine."""

    async def test_no_descriptor_left_for_a_connection(self, bench: Bench) -> None:
        with no_descriptor_left(), pytest.raises(LegFailure) as caught:
            await bench.read()
        assert caught.value.result is LegResult.INTERNAL
        await bench.read()
        assert len(bench.engine.received) == 1

    def test_a_port_that_is_not_to_be_had_is_nobody_s_failure(self) -> None:
        """A local port may be available towards another address."""
        refused = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        assert _result_of(refused) is LegResult.BUSY

    @pytest.mark.parametrize(
        "headers",
        [(("user-agent", "a\r\nb: c"),), (("user-agent", "\u20ac"),), (("user-agent", "\udcff"),)],
        ids=["a line break", "no byte", "a surrogate"],
    )
    async def test_a_head_that_cannot_be_written(self, bench: Bench, headers: Headers) -> None:
        request = OutboundRequest(profile("r1"), PATH, headers, b"{}")
        with pytest.raises(ValueError):
            bench.send(order(), request)
        assert bench.engine.received == []

    async def test_an_address_that_is_none(self, bench: Bench) -> None:
        bench.endpoints.replace([ReplicaEndpoint(ReplicaId("a"), US, "http://[::1", Dialect.VLLM)])
        with pytest.raises(ValueError):
            await bench.read()

    async def test_an_error_in_the_parser_is_told_as_a_fault(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise KeyError("ours")

        monkeypatch.setattr("gateway.http1.client.ClientConnection.on_headers_complete", fail)
        with pytest.raises(KeyError, match="ours"):
            await bench.read()

    async def test_an_error_while_an_error_is_read_is_told_as_a_fault(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise KeyError("ours")

        monkeypatch.setattr(client_module, "read_error", fail)
        bench.engine.plays(fakes.answer(400, b"{}"))
        with pytest.raises(KeyError, match="ours"):
            await bench.read()


class TestHeaders:
    async def test_values_go_out_byte_for_byte(self, bench: Bench) -> None:
        sent = "\u65e5\u672c\u8a9e \u20ac \udcff"
        raw = sent.encode("utf-8", "surrogateescape")
        request = OutboundRequest(profile("r1"), PATH, (("x-session-id", raw.decode("latin-1")),), b"{}")
        await bench.send(order(), request).whole()
        assert bench.engine.received[0].headers["x-session-id"] == sent

    async def test_those_that_connection_names_stay_with_it(self, bench: Bench) -> None:
        told = {"Connection": "Keep-Alive, X-Debug ,x-internal-host", "X-Debug": "1", "X-Internal-Host": "10.0.0.1"}
        bench.engine.plays(fakes.answer(200, fakes.GOOD_ANSWER, **told, **{"x-kept": "yes"}))
        leg = bench.open()
        await leg.whole()
        assert ("x-kept", "yes") in leg.head.headers
        names = {name.lower() for name, _ in leg.head.headers}
        assert not names & {"connection", "x-debug", "x-internal-host"}
        bench.engine.plays(fakes.answer(200, fakes.GOOD_ANSWER, **{"x-debug": "2"}))
        leg = bench.open()
        await leg.whole()
        assert ("x-debug", "2") in leg.head.headers, "that was another answer's"


async def _slow_error(exchange: Exchange) -> None:
    await exchange.head(400, {"content-length": "100"})
    await exchange.send(b"x" * 50)
    await asyncio.Event().wait()


class TestStopping:
    """Each leg has one last word, whenever it is stopped."""

    @pytest.mark.parametrize("turns", range(6))
    async def test_while_it_connects_or_sends(self, bench: Bench, turns: int) -> None:
        bench.engine.plays(fakes.hang)
        leg = bench.open()
        for _ in range(turns):
            await asyncio.sleep(0)
        leg.stop()
        assert leg.told == ["failed"]
        assert leg.failure is STOPPED
        await self.stays(leg)

    @pytest.mark.parametrize("word", ["head", "data", "end"])
    async def test_inside_each_word(self, bench: Bench, word: str) -> None:
        leg = Heard()
        leg.on_told = lambda told: leg.stop() if told == word else None
        bench.open(listener=leg)
        await leg.is_over()
        if word == "end":
            assert leg.told[-1] == "end"
        else:
            assert leg.told[-2:] == [word, "failed"]
        await self.stays(leg)

    @pytest.mark.parametrize("word", ["head", "data", "end"])
    async def test_inside_each_word_about_an_error(self, bench: Bench, word: str) -> None:
        bench.engine.plays(fakes.answer(400, b"{}"))
        leg = Heard()
        leg.on_told = lambda told: leg.stop() if told == word else None
        bench.open(listener=leg)
        await leg.is_over()
        await self.stays(leg)

    async def test_while_an_error_is_read(self, bench: Bench) -> None:
        bench.engine.plays(_slow_error)
        leg = bench.open()
        await until(lambda: _awaits_error(leg.handle))
        leg.stop()
        assert leg.told == ["failed"]
        assert leg.failure is STOPPED
        await bench.engine.aborted.reaches(1)
        await self.stays(leg)

    async def test_after_its_end(self, bench: Bench) -> None:
        leg = bench.open()
        await leg.whole()
        leg.stop()
        await self.stays(leg)

    async def test_after_its_failure(self, bench: Bench) -> None:
        bench.engine.plays(fakes.hang_up)
        leg = bench.open()
        await leg.is_over()
        leg.stop()
        await self.stays(leg)

    @pytest.mark.parametrize("turns", [0, 1, 3])
    async def test_one_that_is_answered_here(self, bench: Bench, turns: int) -> None:
        """llama.cpp takes text alone to count."""
        bench.endpoints.replace([dataclasses.replace(bench.endpoint, dialect=Dialect.LLAMACPP)])
        request = OutboundRequest(profile("r1"), TOKENIZE_PATH, HEADERS, b'{"model":"m","messages":[]}')
        leg = bench.send(order(), request)
        assert isinstance(leg.handle, RefusedLeg)
        leg.handle.pause()
        leg.handle.resume()
        for _ in range(turns):
            await asyncio.sleep(0)
        leg.stop()
        assert leg.told == (["head", "data", "end"] if turns else ["failed"])
        await self.stays(leg)

    async def stays(self, leg: Heard) -> None:
        """Check that the last word is the last, although it is stopped again."""
        told = list(leg.told)
        leg.stop()
        for _ in range(5):
            await asyncio.sleep(0)
        assert leg.told == told
        assert sum(word in ("end", "failed", "fault") for word in told) == 1


class TestLateErrors:
    """An error's body has a time of its own."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "_ERROR_WAIT_S", 0.02)

    async def test_a_refusal_without_its_reason_is_a_failure(self, bench: Bench) -> None:
        bench.engine.plays(_slow_error)
        leg = bench.open()
        await leg.is_over()
        assert leg.failure is not None
        assert "broke off: TimeoutError" in leg.failure.detail
        await bench.engine.aborted.reaches(1)

    @pytest.mark.parametrize("status", [429, 503])
    async def test_of_others_what_has_come_counts(self, bench: Bench, status: int) -> None:
        async def slow(exchange: Exchange) -> None:
            await exchange.head(status, {"content-length": "100"})
            await exchange.send(b"full")
            await asyncio.Event().wait()

        bench.engine.plays(slow)
        leg = bench.open()
        assert json.loads(await leg.whole())["error"]["message"] == "full"
        assert leg.head.status == status
        await bench.engine.aborted.reaches(1)


class TestPausing:
    async def test_nothing_comes_until_it_resumes(self, bench: Bench) -> None:
        gate = asyncio.Event()
        bench.engine.plays(fakes.stream_until(gate, (fakes.ROLE,), (fakes.token("x"), fakes.DONE)))
        leg = bench.open()
        await leg.hears("data")
        assert leg.handle is not None
        leg.handle.pause()
        before = leg.body
        gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert leg.body == before
        leg.handle.resume()
        await leg.is_over()
        assert leg.body.endswith(fakes.DONE)


def _awaits_error(handle: LegHandle | None) -> bool:
    assert isinstance(handle, EngineLeg)
    error = handle._error
    return error is not None and len(error.body) == 50
