"""Faults of engines: requests that can be served elsewhere are, the others get an error, and no resource stays
in use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, ProbeConfig
from gateway.core.events import ConfigApplied
from gateway.core.vocabulary import LegResult, Outcome, Standing
from tests.fakes.engine import (
    DONE,
    GOOD_ANSWER,
    GOOD_STREAM,
    JSON_HEADERS,
    ROLE,
    SSE_HEADERS,
    STOP,
    Exchange,
    FakeEngine,
    Script,
    answer,
    chat_chunk,
    error_event,
    hang,
    hang_up,
    stream,
    stream_and_cut,
    stream_and_hang,
    stream_until,
    token,
)
from tests.support.aftermath import Stand, stand
from tests.support.core import MS, US, unresumed
from tests.support.descriptors import no_descriptor_left
from tests.support.gateways import ask, counted, free_replicas, region_config, until, write_policy

GOOD = b"".join(GOOD_STREAM)
ABORT = chat_chunk({"content": ""}, "abort")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
Stands = Callable[..., AbstractAsyncContextManager[Stand]]


@pytest.fixture
def stands(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> Stands:
    def make(**options: Any) -> AbstractAsyncContextManager[Stand]:
        return stand(tmp_path, unused_tcp_port_factory, **options)

    return make


def raw(data: bytes, *, cuts: bool = True) -> Script:
    """Script that sends any bytes in place of an answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.raw(data)
        if cuts:
            await asyncio.sleep(0.01)
            exchange.cut()
        await asyncio.Event().wait()

    return script


def endlessly(piece: bytes, *, before: bytes = b"", every_s: float = 0.005) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(before)
        while True:
            await exchange.send(piece)
            await asyncio.sleep(every_s)

    return script


def piecewise(piece: bytes, times: int) -> Script:
    """Script of a page with a content length, written no faster than it is read."""

    async def script(exchange: Exchange) -> None:
        await exchange.head(200, {"content-type": "text/plain", "content-length": str(len(piece) * times)})
        for _ in range(times):
            await exchange.send(piece)

    return script


NO_TOKEN: dict[str, Script] = {
    "hangs up": hang_up,
    "fails": answer(500, b"oops"),
    "is full": answer(503, b"full"),
    "limits the rate": answer(429, b"slow down"),
    "does not know our key": answer(401, b'{"error":"Unauthorized"}'),
    "shuts down": answer(500, b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}'),
    "is full and says so in its stream": stream(error_event(503), DONE),
    "fails in its stream": stream(ROLE, error_event(500), DONE),
    "says nothing but that it is done": stream(DONE),
    "says nothing at all": stream(),
    "only announces": stream(ROLE, DONE),
    "aborts as if all were well": stream(ROLE, ABORT, DONE),
    "dies after its headers": stream_and_cut(),
    "dies before a token": stream_and_cut(ROLE),
    "dies in its first token": stream_and_cut(ROLE, token("x")[:20]),
    "answers in HTML": answer(200, b"<html>welcome</html>"),
    "answers with nothing": answer(200, b""),
    "streams what is no JSON": stream(b"data: <html>\n\n"),
    "speaks another protocol": raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "sends headers without end": raw(b"HTTP/1.1 200 OK\r\n" + b"x-flood: y\r\n" * 10_000, cuts=False),
    "sends chunks that are none": raw(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n"),
    "stops short of its length": raw(HEAD + b"content-length: 1000\r\n\r\n" + ROLE),
    "packs its answer": raw(HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd"),
}
NO_TOKEN_IN_TIME: dict[str, Script] = {
    "sends interim answers": raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, cuts=False),
    "hangs before its headers": hang,
    "hangs in its headers": raw(b"HTTP/1.1 200 OK\r\ncontent-ty", cuts=False),
    "hangs after its headers": stream_and_hang(),
    "hangs after its role": stream_and_hang(ROLE),
    "keeps its stream alive and says nothing": endlessly(b": keep-alive\n\n"),
    "drips an event that never ends": endlessly(b"x", before=b"data: "),
}


class TestBeforeAToken:
    """Another engine answers, and the client sees nothing of the first."""

    @pytest.mark.parametrize("bad", NO_TOKEN.values(), ids=NO_TOKEN)
    async def test_what_fails_is_had_elsewhere(self, stands: Stands, bad: Script) -> None:
        async with stands(engines=2) as stand:
            await self.is_had_elsewhere(stand, bad)

    @pytest.mark.parametrize("bad", NO_TOKEN_IN_TIME.values(), ids=NO_TOKEN_IN_TIME)
    async def test_what_hangs_is_left_and_had_elsewhere(self, stands: Stands, bad: Script) -> None:
        async with stands(engines=2) as stand:
            patient = stand.gateway.config.core
            impatient = replace(patient, attempt=replace(patient.attempt, first_token_deadline_ns=300 * MS))

            async def hanging(exchange: Exchange) -> None:
                stand.gateway.driver.submit(ConfigApplied(patient))  # the next attempt has all the time
                await bad(exchange)

            stand.gateway.driver.submit(ConfigApplied(impatient))
            await self.is_had_elsewhere(stand, hanging)
            await until(lambda: stand.aborted > 0)

    async def is_had_elsewhere(self, stand: Stand, bad: Script) -> None:
        first_only(stand, bad)
        await stand.is_served(None)
        assert all(engine.received for engine in stand.engines)
        assert stand.arrived <= 3, "only a connection that was kept is tried twice"

    @pytest.mark.parametrize("bad", [hang_up, answer(500, b"oops"), stream(DONE), stream(error_event(500), DONE)])
    async def test_when_all_fail_the_client_is_told_and_no_engine_named(self, stands: Stands, bad: Script) -> None:
        async with stands(engines=2, across=True) as stand:
            for engine in stand.engines:
                engine.plays(bad)
            async with ask(stand.session, stand.gateway.http_url) as response:
                body = await response.read()
            assert (response.status, json.loads(body)["error"]["code"]) == (502, "engine_failed")
            assert b"127.0.0.1" not in body


def first_only(stand: Stand, bad: Script) -> None:
    """Make the engine that is asked first play this from then on; the other engine is good."""
    first: list[FakeEngine] = []

    def playing(engine: FakeEngine) -> Script:
        async def script(exchange: Exchange) -> None:
            first[:] = first or [engine]
            await (bad if first[0] is engine else stream(*GOOD_STREAM))(exchange)

        return script

    for engine in stand.engines:
        engine.plays(playing(engine))


AFTER_A_TOKEN: dict[str, Script] = {
    "dies": stream_and_cut(ROLE, token("x")),
    "fails": stream(ROLE, token("x"), error_event(500), DONE),
    "is terminated and pretends to be done": stream(ROLE, token("x"), ABORT, DONE),
    "ends without an end": stream(ROLE, token("x")),
    "dies in an event": stream_and_cut(ROLE, token("x"), token("y")[:20]),
    "sends chunks that are none": raw(
        HEAD
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\nzz\r\n" % (len(ROLE + token("x")), ROLE + token("x"))
    ),
}


def _unresumed(config: GatewayConfig) -> GatewayConfig:
    return replace(config, core=unresumed(config.core))


class TestAfterAToken:
    """Failures after the first token, where answers are not resumed."""

    @pytest.mark.parametrize("across", [False, True])
    @pytest.mark.parametrize("bad", AFTER_A_TOKEN.values(), ids=AFTER_A_TOKEN)
    async def test_the_stream_says_that_it_failed(self, stands: Stands, bad: Script, across: bool) -> None:
        async with stands(across=across, change=_unresumed) as stand:
            stand.engine.plays(bad)
            async with ask(stand.session, stand.gateway.http_url) as response:
                body = await response.read()
            assert body.startswith(ROLE + token("x"))
            assert b'"code":"engine_failed_midstream"' in body
            assert body.endswith(DONE)
            assert b"abort" not in body
            assert stand.arrived == 1, "what has begun is not begun again"

    @pytest.mark.parametrize("across", [False, True])
    async def test_one_that_hangs_is_left_at_the_deadline(self, stands: Stands, across: bool) -> None:
        def change(config: GatewayConfig) -> GatewayConfig:
            return replace(config, limits=replace(config.limits, request_deadline_ns=1500 * MS))

        async with stands(across=across, change=change) as stand:
            stand.engine.plays(stream_until(asyncio.Event(), (ROLE, token("x"))))
            async with ask(stand.session, stand.gateway.http_url) as response:
                body = await response.read()
            assert b'"code":"deadline_exceeded"' in body
            await stand.engine.aborted.reaches(1)

    async def test_half_of_an_answer_in_one_piece_never_looks_complete(self, stands: Stands) -> None:
        """The engine tells no length, and sends more than the gateway holds back."""
        async with stands() as stand:
            await self.is_cut(stand)
            await until(lambda: ended_as(stand.gateway, Outcome.FAILED_MIDSTREAM) == 1)

    @staticmethod
    async def is_cut(stand: Stand) -> None:
        has_begun = asyncio.Event()

        async def half(exchange: Exchange) -> None:
            await exchange.head(200, JSON_HEADERS)
            await exchange.send(GOOD_ANSWER.partition(b"Hello")[0] + b"x" * (1 << 20))
            await has_begun.wait()
            exchange.cut()
            await asyncio.Event().wait()

        stand.engine.plays(half)
        async with ask(stand.session, stand.gateway.http_url, stream=False) as response:
            assert response.status == 200
            has_begun.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


def ended_as(gateway: GatewayHandle, outcome: Outcome) -> float:
    return counted(gateway, "requests_total", model="llama", outcome=outcome)


class TestDescriptors:
    async def test_an_engine_for_which_none_is_left_is_not_to_blame(self, tmp_path: Path) -> None:
        """A client that is connected already gets the error. No connection to the engine is kept for its request."""
        async with (
            FakeEngine().serving() as engine,
            serve_gateway(region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))) as gateway,
            aiohttp.ClientSession() as session,
        ):
            await until(lambda: free_replicas(gateway) == 1)
            async with session.get(f"{gateway.http_url}/v1/models") as response:
                assert response.status == 200
            with no_descriptor_left():
                async with ask(session, gateway.http_url) as response:
                    assert (response.status, (await response.json())["error"]["code"]) == (500, "internal_error")
            assert engine.arrived.count == 0
            assert {state.standing for state in gateway.core.replicas} == {Standing.AVAILABLE}
            assert ended_as(gateway, Outcome.FAILED_INTERNALLY) == 1
            assert counted(gateway, "attempts_total", target="replica", result=LegResult.INTERNAL) == 1
            async with ask(session, gateway.http_url) as response:
                assert await response.read() == GOOD


FAST: dict[str, Script] = {
    "hangs up": hang_up,
    "fails": answer(500, b"oops"),
    "is full": answer(503, b"full"),
    "limits the rate": answer(429, b"slow"),
    "is full and says so in its stream": stream(error_event(503), DONE),
    "says nothing but that it is done": stream(DONE),
}
ASKED = 60


class TestFailingFast:
    @pytest.mark.parametrize("bad", FAST.values(), ids=FAST)
    async def test_an_engine_that_fails_fast_gets_trials_and_not_the_traffic(self, stands: Stands, bad: Script) -> None:
        """The failing engine's metrics report no load, and the good engine's a high load."""
        async with stands(engines=2) as stand:
            failing, good = stand.engines
            failing.plays(bad)
            good.running = 8
            await until(lambda: max(state.running for state in stand.gateway.core.replicas) == 8)
            for _ in range(ASKED):
                await stand.is_served(None)
                await probed_again(stand)
            assert good.arrived.count == ASKED
            assert failing.arrived.count <= ASKED // 5


async def probed_again(stand: Stand) -> None:
    """Wait until the failing engine has been probed again."""
    (failing, _) = stand.gateway.core.replicas
    seen = failing.sampled_ns
    await until(lambda: failing.sampled_ns != seen)


def page(waiting: object = 0, running: object = 0) -> bytes:
    labels = 'engine="0",model_name="llama"'
    return (
        f"vllm:num_requests_running{{{labels}}} {running}\nvllm:num_requests_waiting{{{labels}}} {waiting}\n".encode()
    )


GARBAGE: dict[str, Script] = {
    "is no text": answer(200, b"\xff\xfe\x00" * 1000),
    "is empty": answer(200, b""),
    "is HTML": answer(200, b"<html>not found</html>"),
    "says nothing of requests": answer(200, b"process_cpu_seconds_total 1.0\n"),
    "counts nothing": answer(200, page("NaN")),
    "counts less than nothing": answer(200, page(-5)),
    "counts without end": answer(200, page("+Inf")),
    "counts beyond belief": answer(200, page(1e300)),
    "counts in words": answer(200, page("many")),
    "is a hundred megabytes": piecewise(b"# nothing\n" * 10_000, 1_000),
    "never ends": endlessly(b"# nothing\n" * 10_000, every_s=0),
    "drips": endlessly(b"#", every_s=0.01),
    "never comes": hang,
    "breaks off": stream_and_cut(page()[:40]),
    "is an error": answer(500, b"oops"),
}


class TestMetrics:
    @pytest.mark.parametrize("bad", GARBAGE.values(), ids=GARBAGE)
    async def test_garbage_is_never_taken_for_idleness(self, stands: Stands, bad: Script) -> None:
        def change(config: GatewayConfig) -> GatewayConfig:
            probes = ProbeConfig(interval_ns=10 * MS, timeout_ns=100 * MS, timeouts_max=2, slow_max_ns=200 * MS)
            return replace(config, probes=probes)

        async with stands(engines=2, change=change) as stand:
            stand.engines[0].probe_script = bad
            garbled = next(iter(stand.gateway.core.replicas))
            await until(lambda: garbled.standing is not Standing.AVAILABLE)
            for _ in range(5):
                await stand.is_served(None)
            assert (stand.engines[0].arrived.count, stand.engines[1].arrived.count) == (0, 5)
            stand.engines[0].probe_script = None
            await until(lambda: free_replicas(stand.gateway) == 2)


CLOCKS = {"in 1970": ("Thu, 01 Jan 1970 00:00:00 GMT", 0), "in 2199": ("Tue, 01 Jan 2199 00:00:00 GMT", 7226582400)}


class TestClocks:
    @pytest.mark.parametrize(("date", "seconds"), CLOCKS.values(), ids=CLOCKS)
    async def test_an_engine_may_live_in_a_time_of_its_own(self, stands: Stands, date: str, seconds: int) -> None:
        """The engine's times are passed on to the client, and the gateway relies on none of them."""
        created = token("x").replace(b'{"id"', b'{"created":%d,"id"' % seconds)

        async def script(exchange: Exchange) -> None:
            await exchange.head(200, {**SSE_HEADERS, "date": date, "expires": date, "age": "99999999"})
            await exchange.send(ROLE + created + STOP + DONE)

        async def probe(exchange: Exchange) -> None:
            stamped = page().replace(b" 0\n", b" 0 %d\n" % (seconds * 1000))
            await exchange.head(200, {"content-type": "text/plain", "date": date, "last-modified": date})
            await exchange.send(stamped + b"process_start_time_seconds %d\n" % seconds)

        async with stands() as stand:
            stand.engine.probe_script = probe
            stand.engine.plays(script)
            await stand.engine.probed.reaches(stand.engine.probed.count + 3)
            assert free_replicas(stand.gateway) == 1
            async with ask(stand.session, stand.gateway.http_url) as response:
                assert await response.read() == ROLE + created + STOP + DONE
            (told,) = response.headers.getall("date")
            assert told != date
            stand.engine.probe_script = None
