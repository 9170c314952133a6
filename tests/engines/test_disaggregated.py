"""A real pair over NIXL behind a gateway: clients get the answer that one engine would have given, the death of either
engine is reported or retried, and both engines and the gateway are empty after a client has left at any point.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
import pytest

from gateway.core.kernel.description import gauges_of
from tests.engines.calls import CHAT, COMPLETIONS, FETCHED, PATHS, TOKENS, asked, comparable, long_text, said_in
from tests.engines.conftest import Pair
from tests.engines.real import KV_BLOCK_TOKENS, LEASE_S, RUNNING_MAX, Engine, reports_error
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.support.core import MODEL, US
from tests.support.gateways import counted, until
from tests.support.rest import unrest

pytestmark = pytest.mark.timeout(900)

JSON = {"content-type": "application/json"}
PLAIN = {"logprobs": None, "top_logprobs": None, "logprob_token_ids": None}
"""Changes to a call whose answer the gateway assembles from a stream: it asks for no logprobs."""
LONG = {"max_tokens": 1500, "min_tokens": 1500, "stream": True}


@asynccontextmanager
async def region_of(
    mesh: RealMesh, pair: Pair, *, decode_batch_max: int = RUNNING_MAX, wait_max: str = "10m"
) -> AsyncIterator[RealRegion]:
    """Region with the pair; `wait_max` is how long a request waits for an engine to return."""
    members = replicas({"reader": pair.prefill.url, "writer": pair.decode.url})
    for member, role in zip(members, ("prefill", "decode"), strict=True):
        member.update(pool="pair", role=role)
    spec = {
        "name": "pair",
        "kind": "disaggregated",
        "connector": "nixl",
        "decode_batch_max": decode_batch_max,
        "lease": f"{LEASE_S}s",
    }
    us = mesh.add("us-1", US, {}, replicas=members, pools=[spec], queue={"wait_max": wait_max})
    async with mesh.running():
        await us.until_free(2)
        yield us


@pytest.fixture
async def region(mesh: RealMesh, pair: Pair) -> AsyncIterator[RealRegion]:
    async with region_of(mesh, pair) as us:
        yield us


async def read(session: aiohttp.ClientSession, url: str, path: str, body: bytes) -> tuple[int, bytes]:
    async with session.post(f"{url}{path}", data=io.BytesIO(body), headers=JSON) as answer:
        return answer.status, await answer.read()


@asynccontextmanager
async def under_way(session: aiohttp.ClientSession, region: RealRegion) -> AsyncIterator[aiohttp.ClientResponse]:
    """A long stream of which a token has arrived."""
    body = asked(COMPLETIONS, long_text(), **LONG)
    async with session.post(f"{region.url}{COMPLETIONS}", data=io.BytesIO(body), headers=JSON) as answer:
        assert answer.status == 200
        assert b'"text"' in await answer.content.readline()
        yield answer


@asynccontextmanager
async def asking(
    session: aiohttp.ClientSession, region: RealRegion, body: bytes
) -> AsyncIterator[asyncio.Task[tuple[int, bytes]]]:
    """Client that waits for the answer to a chat, and leaves when the context ends."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read(session, region.url, CHAT, body))
        yield task
        task.cancel()


async def until_legs(region: RealRegion, count: int) -> None:
    await until(lambda: gauges_of(region.gateway.core, 0).attempts == count)


async def until_kept(engine: Engine) -> None:
    """Wait until the engine keeps KV blocks."""
    async with asyncio.timeout(60):
        while (await engine.counters())["vllm:kv_cache_usage_perc"] == 0:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def at_rest(region: RealRegion, pair: Pair) -> None:
    """Assert that the gateway holds no request and the engines no block, if need be once a lease has ended."""
    await region.until_idle()
    assert unrest(region.gateway) == []
    for engine in pair:
        if engine.is_running:
            await engine.until_holding(0)
            await engine.until_empty(3 * LEASE_S)


class TestAnswers:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", PATHS)
    async def test_a_client_reads_what_one_engine_would_have_said(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession, path: str, stream: bool
    ) -> None:
        more: dict[str, object] = {"stream": stream}
        if stream and path in (CHAT, COMPLETIONS):
            more["stream_options"] = {"include_usage": True}
        body = asked(path, long_text(), **more)
        fetched = (await pair.decode.counters())[FETCHED]
        status, said = await read(session, region.url, path, body)
        alone = await read(session, pair.prefill.url, path, body)
        assert (status, alone[0]) == (200, 200)
        assert said_in(path, said) == said_in(path, alone[1])
        assert said_in(path, said)[0]
        assert (await pair.decode.counters())[FETCHED] - fetched > 5 * KV_BLOCK_TOKENS
        await at_rest(region, pair)
        assert counted(region.gateway, "requests_total", model=MODEL, outcome="completed") == 1
        used = {"model": MODEL, "ran": "local", "counted": "usage"}
        assert counted(region.gateway, "output_tokens_total", **used) == TOKENS

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_whole_answer_has_every_field_of_the_engines_own(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession, path: str
    ) -> None:
        body = asked(path, long_text(), **PLAIN, return_token_ids=True)
        status, said = await read(session, region.url, path, body)
        alone = await read(session, pair.prefill.url, path, body)
        assert (status, alone[0]) == (200, 200)
        assert comparable(said) == comparable(alone[1])

    async def test_many_at_once(self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession) -> None:
        bodies = [asked(CHAT, long_text(), stream=number % 2 == 0) for number in range(3 * RUNNING_MAX)]
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read(session, region.url, CHAT, body)) for body in bodies]
        for body, (status, said) in zip(bodies, [task.result() for task in reads], strict=True):
            alone = await read(session, pair.prefill.url, CHAT, body)
            assert (status, said_in(CHAT, said)[0]) == (200, said_in(CHAT, alone[1])[0])
        await at_rest(region, pair)

    async def test_what_the_engines_refuse_is_the_clients_to_read(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        """Holds for requests that the prefill worker refuses and for those that the decode worker refuses."""
        for changes in ({"prompt": "word " * 5000}, {"max_tokens": 10**6}, {"temperature": -3}):
            status, said = await read(session, region.url, COMPLETIONS, asked(COMPLETIONS, long_text(), **changes))
            assert (status, json.loads(said)["error"]["code"]) == (400, 400)
        await at_rest(region, pair)

    async def test_what_cannot_be_handed_over_is_refused_before_any_engine_hears_of_it(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        before = [await engine.counters() for engine in pair]
        for path, changes in ((CHAT, {"n": 2}), (COMPLETIONS, {"prompt": ["a", "b"]})):
            status, said = await read(session, region.url, path, asked(path, long_text(), **changes))
            assert (status, json.loads(said)["error"]["code"]) == (400, "call_not_supported")
        theirs = json.dumps(
            {"model": MODEL, "messages": [], "kv_transfer_params": {"do_remote_prefill": True}}
        ).encode()
        status, said = await read(session, region.url, CHAT, theirs)
        assert (status, json.loads(said)["error"]["param"]) == (400, "kv_transfer_params")
        after = [await engine.counters() for engine in pair]
        for early, late in zip(before, after, strict=True):
            assert late["vllm:prompt_tokens_total"] == early["vllm:prompt_tokens_total"]


class TestAClientLeaves:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_while_its_prompt_is_read(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession, stream: bool
    ) -> None:
        with pair.prefill.frozen():
            async with asking(session, region, asked(CHAT, long_text(), stream=stream)):
                await until_legs(region, 1)
            await region.until_idle()
        await at_rest(region, pair)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_while_its_decode_is_asked_for(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession, stream: bool
    ) -> None:
        """The decode worker releases the prefill worker's blocks without pulling them."""
        with pair.decode.frozen():
            async with asking(session, region, asked(CHAT, long_text(), stream=stream)):
                await until_kept(pair.prefill)
                await until_legs(region, 1)
            await region.until_idle()
        await at_rest(region, pair)

    async def test_while_it_waits_for_a_slot(self, mesh: RealMesh, pair: Pair, session: aiohttp.ClientSession) -> None:
        """No engine can be told to release the blocks that were read for the request: they go when their lease ends."""
        async with region_of(mesh, pair, decode_batch_max=1) as region:
            async with under_way(session, region) as answer:
                async with asking(session, region, asked(CHAT, long_text())):
                    await until_kept(pair.prefill)
                answer.close()
            await at_rest(region, pair)
            status, _ = await read(session, region.url, CHAT, asked(CHAT, long_text()))
            assert status == 200

    async def test_in_the_middle_of_its_answer(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        async with under_way(session, region) as answer:
            await pair.decode.until_holding(1)
            answer.close()
        await at_rest(region, pair)


class TestADeath:
    async def test_of_the_reader_while_it_reads_is_told(
        self, mesh: RealMesh, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        async with region_of(mesh, pair, wait_max="1s") as region:
            with pair.prefill.frozen():
                async with asking(session, region, asked(CHAT, long_text())) as asked_for:
                    await until_legs(region, 1)
                    pair.prefill.kill()
                    status, said = await asked_for
            assert status >= 500
            assert json.loads(said)["error"]
            await at_rest(region, pair)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_of_the_reader_before_its_blocks_are_fetched_is_told(
        self, mesh: RealMesh, pair: Pair, session: aiohttp.ClientSession, stream: bool
    ) -> None:
        async with region_of(mesh, pair, wait_max="1s") as region:
            with ExitStack() as ice:
                ice.enter_context(pair.decode.frozen())
                async with asking(session, region, asked(CHAT, long_text(), stream=stream)) as asked_for:
                    await until_kept(pair.prefill)
                    await until_legs(region, 1)
                    pair.prefill.kill()
                    ice.close()
                    status, said = await asked_for
            assert status >= 500
            assert json.loads(said)["error"]
            assert await pair.decode.is_healthy()
            await at_rest(region, pair)

    async def test_of_the_writer_in_the_middle_of_an_answer_is_told(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        async with under_way(session, region) as answer:
            pair.decode.kill()
            said = await answer.content.read()
        assert reports_error(said)
        assert b"engine_failed_midstream" in said
        await at_rest(region, pair)

    async def test_of_the_writer_before_its_first_token_is_made_good(
        self, region: RealRegion, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        """A new prefill is made, and the restarted decode worker decodes it."""
        body = asked(CHAT, long_text(), **PLAIN)
        with pair.decode.frozen():
            async with asking(session, region, body) as asked_for:
                await until_kept(pair.prefill)
                await until_legs(region, 1)
                pair.decode.kill()
                pair.decode.start()
                await pair.decode.until_ready()
                status, said = await asked_for
        assert status == 200, said
        alone = await read(session, pair.prefill.url, CHAT, body)
        assert comparable(said) == comparable(alone[1])
        await at_rest(region, pair)
