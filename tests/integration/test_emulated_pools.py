"""Emulated engines of a disaggregated pool, called as a gateway calls real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from gateway.core.vocabulary import Connector, ReplicaRole
from loadgen.engine.handoff import HandoffConfig
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from tests.support.metrics_pages import sums_by_name

NIXL = HandoffConfig(Connector.NIXL, ReplicaRole.PREFILL, lease_s=10_000.0, transfer_s=0.001)
CONFIG = EngineServerConfig(model="m", engine=TINY, time_scale=0.05, ignore_eos=True, faults=True)
PROMPT = {"model": "m", "prompt": "a prompt of a few blocks of tokens. " * 8}
TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HELD = ("in_flight", "running", "waiting", "deferred", "kept", "blocks_held", "offered", "wanted")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 40}]}


@dataclass
class Pair:
    prefill: EngineServer
    decode: EngineServer
    http: aiohttp.ClientSession
    tasks: asyncio.TaskGroup

    async def read(self, **body: Any) -> dict[str, Any]:
        """Answer of the prefill worker."""
        told = PROMPT | {"max_tokens": 1, "kv_transfer_params": TO_PREFILL} | body
        async with self.http.post(f"{self.prefill.url}/v1/completions", json=told) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def answer(self, params: object, path: str = "/v1/completions", **body: Any) -> tuple[int, str]:
        told = PROMPT | {"max_tokens": 6, "kv_transfer_params": params} | body
        async with self.http.post(f"{self.decode.url}{path}", json=told) as response:
            return response.status, await response.text()

    async def books(self, server: EngineServer) -> dict[str, int]:
        async with self.http.get(f"{server.url}/emulated/books") as response:
            books: dict[str, int] = await response.json()
            return books

    async def quiet(self) -> None:
        """Wait until neither engine holds anything, by its own counts. The test's own deadline bounds the wait."""
        for server in (self.prefill, self.decode):
            while (books := await self.books(server)) and any(books[name] for name in HELD):
                pass

    async def until(self, server: EngineServer, name: str, count: int) -> None:
        while (await self.books(server))[name] != count:
            pass


@asynccontextmanager
async def pair(handoff: HandoffConfig = NIXL, **changes: Any) -> AsyncIterator[Pair]:
    prefill = replace(CONFIG, handoff=handoff, **changes)
    decode = replace(prefill, handoff=replace(handoff, role=ReplicaRole.DECODE))
    async with (
        serve_engines([prefill, decode]) as (one, other),
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as tasks,
    ):
        yield Pair(one, other, http, tasks)


async def page(pair: Pair, server: EngineServer) -> dict[str, float]:
    async with pair.http.get(f"{server.url}/metrics") as response:
        return sums_by_name(await response.text())


async def plain_answer(body: dict[str, Any], path: str) -> str:
    async with serve_engines([CONFIG]) as (server,), aiohttp.ClientSession(server.url) as http:
        async with http.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            text: str = answer["choices"][0]["text"]
            return text


async def test_the_prefill_says_where_its_blocks_are_and_keeps_them() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        assert engines.prefill.books().kept == 1
        assert engines.prefill.books().blocks_held > 0
        url = engines.prefill.url

    assert (told["do_remote_prefill"], told["do_remote_decode"], told["transfer_mode"]) == (True, False, "pull")
    assert told["remote_num_tokens"] == len(str(PROMPT["prompt"])) // 4
    assert len(told["remote_block_ids"][0]) == -(-told["remote_num_tokens"] // 16)
    assert f"http://{told['remote_host']}:{told['remote_port']}" == url


async def test_the_answer_is_that_of_a_single_engine_and_nothing_is_left() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        status, text = await engines.answer(told)
        await engines.quiet()
        metrics = await page(engines, engines.decode)

    assert status == 200
    assert await plain_answer(PROMPT | {"max_tokens": 6}, "/v1/completions") in text
    assert metrics["vllm:external_prefix_cache_hits_total"] == told["remote_num_tokens"]


async def test_without_params_an_engine_of_a_pool_serves_as_any_other() -> None:
    async with pair() as engines:
        status, _ = await engines.answer(None)
        await engines.quiet()

    assert status == 200


async def test_a_prefill_that_nobody_fetches_expires_and_is_counted() -> None:
    async with pair(replace(NIXL, lease_s=0.5)) as engines:
        told = (await engines.read())["kv_transfer_params"]
        await engines.quiet()
        assert (await page(engines, engines.prefill))["vllm:nixl_num_kv_expired_reqs_total"] == 1
        assert (await engines.answer(told))[0] == 500
        assert engines.decode.books().stale_reads == 1
        await engines.quiet()


async def test_used_twice_the_second_is_served_from_the_decode_engines_own_cache() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        first = await engines.answer(told)
        await engines.quiet()
        second = await engines.answer(told)
        await engines.quiet()

    assert (first[0], second[0]) == (200, 200)


async def test_a_longer_decode_prompt_kills_the_decode_engine() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        with pytest.raises(aiohttp.ClientError):
            await engines.answer(told, prompt=str(PROMPT["prompt"]) * 2)
        await engines.decode.died.wait()
        with pytest.raises(aiohttp.ClientError):
            await engines.answer(None)

    assert "num_decode_blocks" in engines.decode.why_dead


async def test_do_remote_prefill_alone_kills_the_decode_engine() -> None:
    async with pair() as engines:
        with pytest.raises(aiohttp.ClientError):
            await engines.answer({"do_remote_prefill": True})
        await engines.decode.died.wait()

    assert "num_external_tokens" in engines.decode.why_dead


async def test_another_prompt_of_the_same_length_is_noticed() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        status, _ = await engines.answer(told, prompt=str(PROMPT["prompt"]).swapcase())
        await engines.quiet()

    assert status == 500
    assert engines.decode.books().differing_prompts == 1


async def test_an_unreachable_prefill_is_an_error_in_json_and_in_a_stream_after_its_status() -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        gone = told | {"remote_port": 1}
        assert (await engines.answer(gone))[0] == 500
        status, text = await engines.answer(gone, stream=True)
        chat_status, chat = await engines.answer(
            gone, "/v1/chat/completions", stream=True, messages=CHAT["messages"], prompt=None
        )
        wrong = await engines.answer(told | {"remote_engine_id": "another"})

    error = 'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, '
    assert (status, text) == (200, error + '"code": 500}}\n\ndata: [DONE]\n\n')
    assert chat_status == 200
    assert chat.startswith('data: {"id":"chatcmpl-')
    assert chat.endswith(error + '"code": 500}}\n\ndata: [DONE]\n\n')
    assert wrong[0] == 500


async def test_told_to_the_decode_engine_reads_itself_what_it_cannot_fetch() -> None:
    async with pair(replace(NIXL, recomputes=True)) as engines:
        told = (await engines.read())["kv_transfer_params"]
        status, text = await engines.answer(told | {"remote_port": 1})

    assert status == 200
    assert '"completion_tokens":6' in text


@pytest.mark.parametrize("body", [{"max_tokens": 10_000}, {"model": "nope"}, {"temperature": -1}])
async def test_whom_the_decode_engine_refuses_lets_go_of_the_blocks_at_once(body: dict[str, Any]) -> None:
    async with pair() as engines:
        told = (await engines.read())["kv_transfer_params"]
        assert (await engines.answer(told, **body))[0] in (400, 404)
        await engines.quiet()

    assert engines.prefill.books().leases_expired == 0


async def test_a_full_decode_engine_refuses_and_lets_go() -> None:
    async with pair(replace(NIXL, transfer_s=1_000.0)) as engines:
        one, other = [(await engines.read())["kv_transfer_params"] for _ in range(2)]
        await engines.http.post(f"{engines.decode.url}/faults", json={"mode": "error_503"})
        assert (await engines.answer(one))[0] == 503
        await engines.until(engines.prefill, "kept", 1)
        await engines.http.post(f"{engines.decode.url}/faults", json={"mode": "none"})
        leaving = engines.tasks.create_task(engines.answer(other))
        await engines.until(engines.decode, "deferred", 1)
        waiting = await page(engines, engines.decode)
        leaving.cancel()
        await engines.quiet()

    assert waiting["vllm:num_requests_waiting"] == 1
    assert engines.prefill.books().leases_expired == 0


async def test_a_decode_engine_says_of_what_it_has_queued_that_it_is_wanted_still() -> None:
    async with pair(replace(NIXL, lease_s=6.0, transfer_s=10_000.0)) as engines:
        told = (await engines.read())["kv_transfer_params"]
        leaving = engines.tasks.create_task(engines.answer(told))
        while not engines.prefill.books().heartbeats:
            await engines.books(engines.prefill)
        leaving.cancel()
        await engines.quiet()


MOONCAKE = HandoffConfig(Connector.MOONCAKE, ReplicaRole.PREFILL, transfer_s=0.001)


async def mooncake(engines: Pair, transfer_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    async with engines.http.get(f"{engines.prefill.url}/query") as response:
        ranks = await response.json()
    one = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    other = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": engines.prefill.url,
        "remote_engine_id": ranks["0"]["engine_id"],
        "transfer_id": transfer_id,
    }
    return one, other


@pytest.mark.parametrize("decode_first", [True, False])
async def test_mooncake_legs_meet_whichever_comes_first(decode_first: bool) -> None:
    async with pair(MOONCAKE) as engines:
        one, other = await mooncake(engines, "xfer-1")
        if decode_first:
            answer = engines.tasks.create_task(engines.answer(other))
            await engines.until(engines.decode, "deferred", 1)
            read = await engines.read(kv_transfer_params=one, min_tokens=1)
            status, _ = await answer
        else:
            read = await engines.read(kv_transfer_params=one, min_tokens=1)
            status, _ = await engines.answer(other)
        await engines.quiet()

    assert read["kv_transfer_params"] is None
    assert status == 200


async def test_mooncake_hands_over_nothing_that_stopped_and_least_tokens_keep_it_from_stopping() -> None:
    changes = {"ignore_eos": False, "output_tokens_median": 1.0, "output_tokens_sigma": 0.0}
    async with pair(MOONCAKE, **changes) as engines:
        one, other = await mooncake(engines, "xfer-1")
        stopped = await engines.read(kv_transfer_params=one)
        assert engines.prefill.books().kept == 0
        waits = engines.tasks.create_task(engines.answer(other))
        await engines.until(engines.decode, "deferred", 1)
        cut = await engines.read(kv_transfer_params=one, min_tokens=1)
        status, _ = await waits
        await engines.quiet()

    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["finish_reason"] == "length"
    assert status == 200


async def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    async with pair() as engines:
        assert (await engines.answer(None, max_tokens=2, min_tokens=3))[0] == 400


async def test_ascend_hands_over_what_ended_by_length_and_says_recomputed() -> None:
    async with pair(HandoffConfig(Connector.ASCEND, ReplicaRole.PREFILL, lease_s=10_000.0)) as engines:
        told = (await engines.read(min_tokens=1))["kv_transfer_params"]
        await engines.http.post(
            f"{engines.decode.url}/faults", json={"mode": "recomputed_midstream", "after_tokens": 2}
        )
        status, text = await engines.answer(told, stream=True)
        await engines.quiet()

    assert told["num_prompt_blocks"] == len(told["remote_block_ids"])
    assert status == 200
    assert '"finish_reason":"stop","stop_reason":"recomputed"' in text
    assert text.endswith("data: [DONE]\n\n")


SGLANG = HandoffConfig(Connector.SGLANG, ReplicaRole.PREFILL, transfer_s=0.001)


def in_room(engines: Pair, room: int) -> dict[str, Any]:
    host, port = engines.prefill.url.removeprefix("http://").split(":")
    return {"bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": room}


async def test_sglang_legs_are_the_same_body_and_meet_in_a_room() -> None:
    async with pair(SGLANG) as engines:
        room = in_room(engines, 2**62)
        answer = engines.tasks.create_task(engines.answer(None, **room))
        read = await engines.read(kv_transfer_params=None, max_tokens=6, **room)
        status, text = await answer
        await engines.quiet()

    assert read["usage"]["completion_tokens"] == 1
    assert status == 200
    assert '"completion_tokens":6' in text


async def test_sglang_without_a_room_is_refused_in_its_own_words() -> None:
    async with pair(SGLANG) as engines:
        status, text = await engines.answer(None)

    assert status == 400
    assert text.startswith('{"object":"error","message":"Disaggregated request received without bootstrap room id"')


async def test_a_room_that_is_in_use_kills_the_scheduler() -> None:
    async with pair(SGLANG) as engines:
        await engines.read(kv_transfer_params=None, **in_room(engines, 7))
        with pytest.raises(aiohttp.ClientError):
            await engines.read(kv_transfer_params=None, **in_room(engines, 7))
        await engines.prefill.died.wait()

    assert "room 7" in engines.prefill.why_dead


async def test_ranks_behind_one_url_are_addressed_and_tell_each_of_itself() -> None:
    async with pair(ranks=3, kv_token_ns=100) as engines:
        url = f"{engines.decode.url}/v1/completions"
        body = PROMPT | {"max_tokens": 4}
        for rank, times in ((0, 1), (2, 2)):
            for _ in range(times):
                async with engines.http.post(url, json=body, headers={"X-data-parallel-rank": str(rank)}) as response:
                    assert response.status == 200
        async with engines.http.post(url, json=body, headers={"X-data-parallel-rank": "3"}) as response:
            assert response.status == 400
        async with engines.http.post(url, json=body, headers={"X-data-parallel-rank": "two"}) as response:
            assert response.status == 200
        async with engines.http.get(f"{engines.decode.url}/metrics") as response:
            lines = (await response.text()).splitlines()

    of_rank = 'vllm:generation_tokens_total{engine="%d",model_name="m"} %.1f'
    assert of_rank % (2, 8) in lines
    assert [line for line in lines if line.startswith("# TYPE vllm:num_requests_running")] == [
        "# TYPE vllm:num_requests_running gauge"
    ]
    assert engines.decode.books().is_empty
