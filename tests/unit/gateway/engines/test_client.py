from __future__ import annotations

import asyncio
import errno
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from gateway.config.targets import Dialect
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import (
    Extra,
    LegResult,
    ReplicaId,
    replica_target,
)
from gateway.engines.client import ClientSettings, EngineClient, _result_of
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.request.legs import CacheSalt, Headers, Leg, LegFailure, OutboundRequest
from mesh.clock import Clock
from tests.fakes import engine as fakes
from tests.fakes.engine import Exchange, FakeEngine
from tests.support.core import SECOND, US, profile
from tests.support.descriptors import no_descriptor_left
from tests.support.orders import leg_order

PATH = "/v1/chat/completions"
HEADERS = (("content-type", "application/json"), ("x-request-id", "r1"))


def order(replica: str = "a", attempt: int = 1) -> StartLeg:
    deadline_ns = Clock().now_ns() + 60 * SECOND
    return leg_order("r1", 1, replica_target(ReplicaId(replica)), attempt, deadline_ns=deadline_ns)


class Bench:
    """One engine and a client that knows it as replica `a`."""

    def __init__(self, engine: FakeEngine, client: EngineClient, endpoints: ReplicaEndpoints) -> None:
        self.engine = engine
        self.client = client
        self.endpoints = endpoints
        endpoint = endpoints.get(ReplicaId("a"))
        assert endpoint is not None
        self.endpoint = endpoint
        self.accepted = 0

    def open(
        self, *, replica: str = "a", attempt: int = 1, body: bytes = b"{}", cache_salt: CacheSalt | None = None
    ) -> AbstractAsyncContextManager[Leg]:
        request = OutboundRequest(profile("r1"), PATH, HEADERS, body, cache_salt=cache_salt)
        return self.client.open(order(replica, attempt), request, on_accepted=self._on_accepted)

    async def read(
        self, *, replica: str = "a", attempt: int = 1, body: bytes = b"{}", cache_salt: CacheSalt | None = None
    ) -> bytes:
        async with self.open(replica=replica, attempt=attempt, body=body, cache_salt=cache_salt) as leg:
            return b"".join([data async for data in leg.chunks()])

    def _on_accepted(self) -> None:
        self.accepted += 1


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with FakeEngine().serving() as engine:
        endpoints = ReplicaEndpoints([ReplicaEndpoint(ReplicaId("a"), US, engine.url, Dialect.VLLM, "the-key")])
        async with EngineClient(endpoints, Clock(), ClientSettings()) as client:
            yield Bench(engine, client, endpoints)


class TestAnswers:
    async def test_head_place_and_bytes_come_through(self, bench: Bench) -> None:
        async with bench.open() as leg:
            assert leg.head.status == 200
            assert ("text/event-stream; charset=utf-8") in dict(leg.head.headers).values()
            assert (leg.head.ran_at.replica_id, leg.head.ran_at.place) == ("a", US)
            assert b"".join([data async for data in leg.chunks()]) == b"".join(fakes.GOOD_STREAM)
        assert bench.accepted == 1

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
        bench.endpoints.replace([replace(bench.endpoint, takes_cache_salt=takes)])
        salt = CacheSalt("5a17", replaces_own=False)
        await bench.read(body=b'{ "odd" :  1}', cache_salt=salt)
        assert bench.engine.received[0].body == arrives

    async def test_a_salt_of_the_client_s_gives_way(self, bench: Bench) -> None:
        bench.endpoints.replace([replace(bench.endpoint, takes_cache_salt=True)])
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
            bench.endpoints.replace([replace(bench.endpoint, dialect=dialect, takes_cache_salt=takes_salt)])
            async with bench.client.open(wanted, asked, on_accepted=lambda: None) as leg:
                assert len(leg.head.extras) == told.count(b"true")
                assert b"".join([data async for data in leg.chunks()])
            assert bench.engine.received[-1].body == b"{%b" % told + b'"model":"m"}'

    async def test_whoever_wants_no_stream_is_told_its_usage_unasked(self, bench: Bench) -> None:
        wanted = replace(order(), extras=(Extra.USAGE,))
        asked = OutboundRequest(replace(profile("r1"), stream=False), PATH, HEADERS, b'{"model":"m"}')
        async with bench.client.open(wanted, asked, on_accepted=lambda: None) as leg:
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
        async with bench.open() as leg:
            assert leg.head.status == 400
            told = b"".join([data async for data in leg.chunks()])
        assert b"The engine answered with status 400." in told

    async def test_an_error_is_an_answer_but_not_an_acceptance(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(503, b"full", **{"retry-after": "3"}))
        async with bench.open() as leg:
            assert leg.head.status == 503
            headers = {name.lower(): value for name, value in leg.head.headers}
            assert (headers["retry-after"], headers["content-type"]) == ("3", "application/json")
            (body,) = [data async for data in leg.chunks()]
        assert json.loads(body)["error"]["message"] == "full"
        assert headers["content-length"] == str(len(body))
        assert bench.accepted == 0

    async def test_a_rank_is_asked_for_by_header(self, bench: Bench) -> None:
        bench.endpoints.replace([replace(bench.endpoint, ranks=2, rank=1)])
        await bench.read()
        assert bench.engine.received[0].headers["x-data-parallel-rank"] == "1"

    async def test_a_redirect_is_not_followed(self, bench: Bench) -> None:
        bench.engine.plays(fakes.answer(307, b"", location=bench.engine.url))
        async with bench.open() as leg:
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
        async with bench.client.open(order(), request, on_accepted=lambda: None):
            pass
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
        async with bench.open() as leg:
            assert await anext(leg.chunks())
        await bench.engine.aborted.reaches(1)
        await bench.read()
        assert len(bench.engine.connections) == 2

    async def test_leaving_before_the_head_aborts_too(self, bench: Bench) -> None:
        bench.engine.plays(fakes.hang)
        task = asyncio.get_running_loop().create_task(bench.read())
        await bench.engine.arrived.reaches(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bench.engine.aborted.reaches(1)


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
        bench.endpoints.replace([replace(bench.endpoint, ranks=2, rank=1)])
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

    async def test_leaving_before_the_head_closes_the_connection(self, bench: Bench) -> None:
        """The core keeps the deadline, and stops the leg."""
        bench.engine.plays(fakes.hang)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await bench.read()
        await bench.engine.aborted.reaches(1)


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
            async with bench.client.open(order(), request, on_accepted=lambda: None):
                pass
        assert bench.engine.received == []

    async def test_an_address_that_is_none(self, bench: Bench) -> None:
        bench.endpoints.replace([ReplicaEndpoint(ReplicaId("a"), US, "http://[::1", Dialect.VLLM)])
        with pytest.raises(ValueError):
            await bench.read()

    async def test_what_a_taker_raises_comes_through_as_it_is(self, bench: Bench) -> None:
        def take(_: bytes) -> bool:
            raise OSError(errno.ENOSPC, "no space left")

        with pytest.raises(OSError, match="no space left"):
            async with bench.open() as leg:
                await leg.pour(take)


class TestHeaders:
    async def test_values_go_out_byte_for_byte(self, bench: Bench) -> None:
        sent = "\u65e5\u672c\u8a9e \u20ac \udcff"
        raw = sent.encode("utf-8", "surrogateescape")
        request = OutboundRequest(profile("r1"), PATH, (("x-session-id", raw.decode("latin-1")),), b"{}")
        async with bench.client.open(order(), request, on_accepted=lambda: None):
            pass
        assert bench.engine.received[0].headers["x-session-id"] == sent

    async def test_those_that_connection_names_stay_with_it(self, bench: Bench) -> None:
        told = {"Connection": "Keep-Alive, X-Debug ,x-internal-host", "X-Debug": "1", "X-Internal-Host": "10.0.0.1"}
        bench.engine.plays(fakes.answer(200, fakes.GOOD_ANSWER, **told, **{"x-kept": "yes"}))
        async with bench.open() as leg:
            assert ("x-kept", "yes") in leg.head.headers
            names = {name.lower() for name, _ in leg.head.headers}
            assert not names & {"connection", "x-debug", "x-internal-host"}
        bench.engine.plays(fakes.answer(200, fakes.GOOD_ANSWER, **{"x-debug": "2"}))
        async with bench.open() as leg:
            assert ("x-debug", "2") in leg.head.headers, "that was another answer's"
