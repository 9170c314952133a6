"""Every bound on clients' use of resources, reached over a real socket through the key of the region file that
sets it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import LimitsConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import QueueConfig
from gateway.core.vocabulary import RequestId
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, Exchange, FakeEngine, stream_until, token
from tests.support.core import LAYERED, MS, SECOND, US, under
from tests.support.gateways import ask, free_replicas, region_config, until, write_policy
from tests.support.wire import CHAT_BODY, CHAT_PATH, Wire, wire


@asynccontextmanager
async def serving(
    folder: Path,
    engine: FakeEngine,
    *,
    queue: QueueConfig | None = None,
    trust_tenant_header: bool = False,
    **limits: int,
) -> AsyncIterator[GatewayHandle]:
    config = replace(
        region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US)),
        limits=LimitsConfig(**limits),
        core=under(LAYERED, CoreConfig(queue=queue or QueueConfig())),
        trust_tenant_header=trust_tenant_header,
    )
    async with serve_gateway(config) as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        yield gateway


async def refused(response: aiohttp.ClientResponse) -> tuple[int, str]:
    error = (await response.json())["error"]
    return response.status, error["code"]


class TestBodies:
    async def test_one_body(self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession) -> None:
        async with serving(tmp_path, engine, body_max_bytes=1000) as gateway:
            async with ask(session, gateway.http_url, pad="x" * 1000) as response:
                assert await refused(response) == (413, "body_too_large")
            async with ask(session, gateway.http_url, pad="x" * 500) as response:
                assert response.status == 200
        assert len(engine.received) == 1

    async def test_a_body_of_unknown_length_is_measured_as_it_comes(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 500

        async with serving(tmp_path, engine, body_max_bytes=1000) as gateway:
            async with session.post(gateway.http_url + CHAT_PATH, data=endless()) as response:
                assert await refused(response) == (413, "body_too_large")

    async def test_all_bodies_together(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        go_on = asyncio.Event()
        engine.plays(stream_until(go_on, (ROLE, token("x")), (STOP, DONE)))
        async with serving(tmp_path, engine, bodies_held_max_bytes=1500) as gateway:
            async with ask(session, gateway.http_url, pad="x" * 900) as first:
                await first.content.readany()
                async with ask(session, gateway.http_url, pad="x" * 900) as second:
                    assert await refused(second) == (503, "gateway_full")
                    assert float(second.headers["retry-after"]) > 0
                go_on.set()
                await first.read()
            async with ask(session, gateway.http_url, pad="x" * 900) as third:
                assert third.status == 200

    async def test_requests_at_once(self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession) -> None:
        engine.plays(stream_until(asyncio.Event(), (ROLE, token("x"))))
        async with serving(tmp_path, engine, requests_max=1) as gateway:
            async with ask(session, gateway.http_url) as first:
                await first.content.readany()
                async with ask(session, gateway.http_url) as second:
                    assert await refused(second) == (503, "gateway_full")

    async def test_one_that_takes_too_long(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, client_stall_ns=20 * MS) as gateway, wire(gateway) as client:
            client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{")
            assert await client.refusal() == (408, "body_timeout")

    async def test_one_that_drips(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with (
            serving(tmp_path, engine, body_grace_ns=20 * MS, body_rate_min_bytes=2**20) as gateway,
            wire(gateway) as client,
        ):
            client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n")
            assert await client.refusal() == (408, "body_timeout")

    async def test_what_is_only_announced_takes_no_room(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        async with (
            serving(tmp_path, engine, bodies_held_max_bytes=2**20, requests_max=2) as gateway,
            AsyncExitStack() as stack,
        ):
            for framing in 10 * (f"content-length: {2**20}", "transfer-encoding: chunked"):
                silent = await stack.enter_async_context(wire(gateway))
                silent.send(f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n")
            async with ask(session, gateway.http_url, pad="x" * 10_000) as response:
                assert response.status == 200

    @pytest.mark.parametrize("encoding", ["gzip", "deflate"])
    async def test_one_that_is_larger_than_it_looks(self, tmp_path: Path, engine: FakeEngine, encoding: str) -> None:
        def pack(data: bytes) -> bytes:
            return gzip.compress(data) if encoding == "gzip" else zlib.compress(data)

        async with serving(tmp_path, engine, body_max_bytes=2**20, bodies_held_max_bytes=2**20) as gateway:
            for size, expected in ((2**21, (413, "body_too_large")), (2**19, (400, "invalid_json"))):
                async with wire(gateway) as client:
                    client.post(f"content-encoding: {encoding}", body=pack(bytes(size)))
                    assert await client.refusal() == expected
            async with wire(gateway) as client:
                client.post(f"content-encoding: {encoding}", body=pack(CHAT_BODY))
                assert (await client.head())[0] == 200
        assert engine.received[0].body == CHAT_BODY
        assert "content-encoding" not in engine.received[0].headers

    async def test_room_that_only_what_is_packed_would_fit_into(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, bodies_held_max_bytes=2**20) as gateway, wire(gateway) as client:
            client.post("content-encoding: gzip", body=gzip.compress(b" " * 2**23))
            assert await client.refusal() == (503, "gateway_full")

    @pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br"])
    async def test_other_encodings_are_told_what_is_taken(
        self, tmp_path: Path, engine: FakeEngine, encoding: str
    ) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as client:
            client.post(f"content-encoding: {encoding}", body=b"xxxx")
            status, headers, body = await client.answer()
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (415, "unsupported_encoding")
            assert headers["accept-encoding"] == "gzip, deflate"
            assert repr(encoding) in error["message"]
            assert "gzip and deflate" in error["message"]

    async def test_what_is_not_in_the_encoding_that_it_names(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as client:
            client.post("content-encoding: gzip", body=CHAT_BODY)
            status, _, body = await client.answer()
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (400, "invalid_encoding")
            assert "could not be read as gzip" in error["message"]

    async def test_nobody_is_told_to_send_what_will_be_refused(self, tmp_path: Path, engine: FakeEngine) -> None:
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        async with serving(tmp_path, engine, body_max_bytes=1000) as gateway:
            async with wire(gateway) as client:
                client.send(f"{head}content-length: 1001\r\n\r\n")
                status, headers, _ = await client.answer()
                assert (status, headers["connection"]) == (413, "close")
            async with wire(gateway) as client:
                client.send(f"{head}content-length: {len(CHAT_BODY)}\r\n\r\n")
                assert await client.head() == (100, {})
                client.send(CHAT_BODY)
                assert (await client.head())[0] == 200

    async def test_prompt_blocks_that_are_compared(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        engine.plays(stream_until(asyncio.Event(), (ROLE, token("x"))))
        long = [{"role": "user", "content": "x" * 5000}]
        for blocks_max, expected in ((3, 3), (4096, 19)):
            async with serving(tmp_path, engine, prompt_blocks_max=blocks_max) as gateway:
                async with ask(session, gateway.http_url, messages=long) as response:
                    await response.content.readany()
                    running = gateway.core.requests[RequestId(response.headers["x-request-id"])]
                    assert running.profile.prefix_blocks == expected


class TestHeaders:
    async def test_one_line(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, header_line_max_bytes=2000) as gateway, wire(gateway) as client:
            client.post(f"x-long: {'y' * 2500}")
            assert await client.refusal() == (431, "headers_too_large")
            assert await client.is_closed()
        assert engine.received == []

    async def test_the_request_line(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, header_line_max_bytes=2000) as gateway, wire(gateway) as client:
            client.send(f"GET /v1/models?{'y' * 2500} HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await client.refusal() == (431, "headers_too_large")

    async def test_how_many(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, header_count_max=20) as gateway, wire(gateway) as client:
            client.post(*[f"x-{number}: y" for number in range(30)])
            assert await client.refusal() == (431, "headers_too_large")
            assert await client.is_closed()

    async def test_all_of_them_at_once(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, headers_max_bytes=2000) as gateway, wire(gateway) as client:
            client.post(*[f"x-{number}: {'y' * 100}" for number in range(30)])
            assert await client.refusal() == (431, "headers_too_large")

    async def test_all_of_them_piece_by_piece(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, headers_max_bytes=2000) as gateway, wire(gateway) as client:
            client.send(f"POST {CHAT_PATH} HTTP/1.1\r\n")
            for number in range(30):
                client.send(f"x-{number}: {'y' * 100}\r\n")
                await client.writer.drain()
            assert await client.refusal() == (431, "headers_too_large")
            assert await client.is_closed()

    @pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
    async def test_a_client_that_drips_them_is_told_and_closed(
        self, tmp_path: Path, engine: FakeEngine, first: bytes
    ) -> None:
        async with serving(tmp_path, engine, headers_wait_ns=100 * MS) as gateway, wire(gateway) as client:
            if first:
                client.send(first)
                assert (await client.answer())[0] == 200
            client.send(f"POST {CHAT_PATH} HTTP/1.1\r\nx-slow: ")
            dripping = asyncio.get_running_loop().create_task(self.drip(client))
            assert await client.refusal() == (408, "headers_timeout")
            assert await client.is_closed()
            dripping.cancel()

    async def drip(self, client: Wire) -> None:
        while True:
            client.send(b"y")
            await asyncio.sleep(0.01)

    async def test_headers_in_time_are_not_held_against_a_slow_answer(self, tmp_path: Path, engine: FakeEngine) -> None:
        go_on = asyncio.Event()
        engine.plays(stream_until(go_on, (ROLE, token("x")), (STOP, DONE)))
        async with serving(tmp_path, engine, headers_wait_ns=SECOND) as gateway, wire(gateway) as client:
            for line in (f"POST {CHAT_PATH} HTTP/1.1", "host: x", "x-more: y", f"content-length: {len(CHAT_BODY)}"):
                client.send(f"{line}\r\n")
                await asyncio.sleep(0.001)
            client.send(b"\r\n" + CHAT_BODY)
            assert (await client.reader.readline()).split()[1] == b"200"
            await asyncio.sleep(1.1)
            go_on.set()
            assert await client.reader.readuntil(DONE)

    async def test_what_is_no_http_is_refused_in_our_words(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, wire(gateway) as client:
            client.send(b"\x16\x03\x01 secret\r\n\r\n")
            assert await client.refusal() == (400, "invalid_request")


class TestConnections:
    async def test_how_many_may_be_open(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        async with serving(tmp_path, engine, connections_max=2) as gateway, AsyncExitStack() as stack:
            taken = [await stack.enter_async_context(wire(gateway)) for _ in range(2)]
            for client in taken:
                client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await client.answer())[0] == 200
            late = await stack.enter_async_context(wire(gateway))
            late.post()
            status, headers, body = await late.answer()
            assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
            assert float(headers["retry-after"]) > 0
            assert await late.is_closed()
            taken[0].writer.transport.abort()
            while True:
                async with wire(gateway) as again:
                    again.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                    if (await again.answer())[0] == 200:
                        break

    async def test_operators_have_256_of_their_own(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine) as gateway, AsyncExitStack() as stack:
            assert gateway.admin_address is not None
            answers = []
            for _ in range(257):
                reader, writer = await asyncio.open_connection(gateway.admin_address.host, gateway.admin_address.port)
                stack.callback(writer.close)
                writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                answers.append((await reader.readline()).split()[1])
            assert answers == [*[b"200"] * 256, b"503"]
            async with wire(gateway) as client:
                client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await client.answer())[0] == 200

    async def test_a_silent_one_is_closed(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with serving(tmp_path, engine, idle_connection_ns=50 * MS) as gateway, wire(gateway) as client:
            assert await client.is_closed()

    async def test_a_client_that_reads_nothing_holds_up_its_engine_and_is_then_given_up(
        self, tmp_path: Path, engine: FakeEngine
    ) -> None:
        sent = 0

        async def pour(exchange: Exchange) -> None:
            nonlocal sent
            await exchange.head()
            await exchange.send(ROLE)
            while True:
                piece = token("x" * 100_000)
                await exchange.send(piece)
                sent += len(piece)

        engine.plays(pour)
        async with serving(tmp_path, engine, client_stall_ns=200 * MS) as gateway, wire(gateway, 1) as client:
            client.post()
            await engine.aborted.reaches(1)
            await until(lambda: gateway.driver.open_requests == 0)
        assert sent < 64 << 20, "the engine was held up long before"


class TestWaiting:
    async def test_how_many_may_wait(self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession) -> None:
        async with serving(tmp_path, engine, queue=QueueConfig(length_max=1), trust_tenant_header=True) as gateway:
            assert await self.behind_one_of_a(gateway, engine, session, "b") == (503, "queue_full")

    async def test_how_many_of_one_tenant_may_wait(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        for tenant, expected in (("a", (429, "tenant_queue_full")), ("b", (200, ""))):
            engine.waiting = 0
            queue = QueueConfig(tenant_length_max=1)
            async with serving(tmp_path, engine, queue=queue, trust_tenant_header=True) as gateway:
                assert await self.behind_one_of_a(gateway, engine, session, tenant) == expected

    async def behind_one_of_a(
        self, gateway: GatewayHandle, engine: FakeEngine, session: aiohttp.ClientSession, tenant: str
    ) -> tuple[int, str]:
        """Result of a request of `tenant` that arrives while one of tenant `a` waits; both are served once the second
        is queued or refused.
        """
        engine.waiting = 1
        await until(lambda: free_replicas(gateway) == 0)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(self.status(session, gateway, "a"))
            await until(lambda: len(gateway.core.waiting) == 1)
            second = tasks.create_task(self.status(session, gateway, tenant))
            await until(lambda: second.done() or len(gateway.core.waiting) == 2)
            engine.waiting = 0
        assert first.result() == (200, "")
        return second.result()

    async def status(self, session: aiohttp.ClientSession, gateway: GatewayHandle, tenant: str) -> tuple[int, str]:
        headers = {"x-nightside-tenant": tenant}
        async with session.post(gateway.http_url + CHAT_PATH, data=CHAT_BODY, headers=headers) as response:
            await response.read()
            return (200, "") if response.status == 200 else await refused(response)

    async def test_how_long_one_may_wait(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        queue = QueueConfig(wait_max_ns=50 * MS)
        async with serving(tmp_path, engine, queue=queue) as gateway:
            engine.waiting = 1
            await until(lambda: free_replicas(gateway) == 0)
            async with ask(session, gateway.http_url) as response:
                assert await refused(response) == (504, "queue_timeout")

    async def test_how_long_one_may_take(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        engine.plays(stream_until(asyncio.Event(), (ROLE, token("x"))))
        async with serving(tmp_path, engine, request_deadline_ns=SECOND // 5) as gateway:
            async with ask(session, gateway.http_url) as response:
                assert b'"code":"deadline_exceeded"' in await response.read()
        await engine.aborted.reaches(1)


async def test_within_all_bounds_it_is_served(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    async with serving(tmp_path, engine) as gateway, ask(session, gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
