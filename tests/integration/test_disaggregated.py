"""A disaggregated pool behind a whole gateway: requests that each engine gets, the client's answer, and the state left
when either engine fails or the client leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.app.gateway import GatewayHandle
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.vocabulary import PoolName, ReplicaId
from tests.fakes.engine import (
    DONE,
    GOOD_STREAM,
    ROLE,
    USAGE,
    FakeEngine,
    answer,
    cut_after,
    event,
    hang,
    stream,
    stream_and_hang,
    stream_until,
    token,
)
from tests.fakes.engine_pages import Page, PagesEngine
from tests.support.background import in_background
from tests.support.core import US
from tests.support.gateways import ENOUGH_S, ask, free_replicas, region_document, serving_file, until

_HANDED_OVER = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"d1f3",'
    b'"remote_request_id":"cmpl-1","remote_host":"127.0.0.1","remote_port":5600, "later":{"spaced" : [1, 2.50]}}'
)
"""Hand-off in an engine's own formatting, to be passed on byte for byte."""
_READ = b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"H"},'
_READ += b'"finish_reason":"length"}],"usage":{"prompt_tokens":22,"completion_tokens":1},"kv_transfer_params":%b}'
PREFILLED = answer(body=_READ % _HANDED_OVER)


@dataclass
class Pair:
    prefill: FakeEngine
    decode: FakeEngine
    gateway: GatewayHandle
    session: aiohttp.ClientSession

    @property
    def books(self) -> tuple[int, ...]:
        """Counts that must be zero when no request is open."""
        core = self.gateway.core
        pool = decode_pools_of(core).get(PoolName("chat"))
        assert pool is not None
        figures = pool.tier.figures(0)
        of_replicas = (state.in_flight + state.retained for state in core.replicas)
        return pool.in_prefill, figures.pooled, figures.dispatched, figures.running, *of_replicas

    async def comes_to_rest(self) -> None:
        await until(lambda: not any(self.books) and not self.gateway.core.requests)


def _region(
    folder: Path,
    reader: FakeEngine,
    writer: FakeEngine,
    *,
    connector: str = "nixl",
    bootstrap_port: int | None = None,
    sections: Mapping[str, object] = MappingProxyType({}),
    **more: object,
) -> dict[str, object]:
    engine = {"models": ["llama"], "pool": "chat"}
    replicas = [
        {"id": "p", "url": reader.url, "role": "prefill", "bootstrap_port": bootstrap_port, **engine},
        {"id": "d", "url": writer.url, "role": "decode", **engine},
    ]
    pool = {"name": "chat", "kind": "disaggregated", "connector": connector, "decode_batch_max": 4, **sections}
    return region_document(folder, "us-1", US, replicas=replicas, pools=[pool], **more)


@asynccontextmanager
async def _paired(folder: Path, **more: Any) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(FakeEngine().serving())
        decode = await stack.enter_async_context(FakeEngine().serving())
        prefill.plays(PREFILLED)
        path = folder / "us.yaml"
        path.write_text(yaml.safe_dump(_region(folder, prefill, decode, **more)))
        gateway = await stack.enter_async_context(serving_file(path))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: free_replicas(gateway) == 2)
        yield Pair(prefill, decode, gateway, session)


async def _answered(pair: Pair, **changes: object) -> tuple[int, bytes]:
    """Ask for a stream with usage, as the scripted engines send it, unless `changes` says otherwise."""
    if changes.get("stream", True) and "stream_options" not in changes:
        changes["stream_options"] = {"include_usage": True}
    async with ask(pair.session, pair.gateway.http_url, **changes) as response:
        return response.status, await response.read()


async def test_one_engine_reads_and_another_one_writes(tmp_path: Path) -> None:
    async with _paired(tmp_path) as pair:
        status, body = await _answered(pair, max_tokens=7, min_tokens=2, stream_options={"include_usage": True})
        assert (status, body) == (200, b"".join(GOOD_STREAM))
        (read,), (written,) = pair.prefill.received, pair.decode.received
        first, second = json.loads(read.body), json.loads(written.body)
        assert (first["stream"], first["max_tokens"], first["min_tokens"]) == (False, 1, 0)
        assert first["kv_transfer_params"]["do_remote_decode"] is True
        assert (second["stream"], second["max_tokens"], second["min_tokens"]) == (True, 7, 2)
        assert _HANDED_OVER in written.body, "byte for byte"
        assert first["messages"] == second["messages"]
        assert read.headers["x-request-id"] == written.headers["x-request-id"]
        await pair.comes_to_rest()


async def test_the_length_of_an_answer_is_asked_for_and_kept_from_a_client_that_did_not_ask(tmp_path: Path) -> None:
    async with _paired(tmp_path) as pair:
        status, body = await _answered(pair, stream_options=None)
        assert (status, body) == (200, b"".join(GOOD_STREAM).replace(USAGE, b""))
        (written,) = pair.decode.received
        assert json.loads(written.body)["stream_options"] == {"include_usage": True}
        known = decode_pools_of(pair.gateway.core).history_of(PoolName("chat"))
        assert known is not None
        await until(lambda: len(known) == 1)
        (read,) = pair.prefill.received
        assert json.loads(read.body)["stream_options"] is None


async def test_a_clients_own_word_about_hand_offs_reaches_no_engine(tmp_path: Path) -> None:
    async with _paired(tmp_path) as pair:
        claimed = {"do_remote_prefill": True, "remote_host": "10.0.0.9"}
        status, body = await _answered(pair, kv_transfer_params=claimed)
        assert (status, b"kv_transfer_params" in body) == (400, True)
        assert not pair.prefill.received
        assert not pair.decode.received


async def test_a_call_that_cannot_be_handed_over_is_told_so(tmp_path: Path) -> None:
    async with _paired(tmp_path) as pair:
        body = {"model": "llama", "input": "hello"}
        async with pair.session.post(f"{pair.gateway.http_url}/v1/embeddings", json=body) as response:
            told = await response.json()
        assert (response.status, told["error"]["code"]) == (400, "call_not_supported")
        assert "different engines" in told["error"]["message"]
        assert not pair.prefill.received
        assert not pair.decode.received


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "gives up"])
async def test_a_decode_that_breaks_off_goes_on_from_a_new_prefill(tmp_path: Path, dies: bool) -> None:
    given_up = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "recomputed"}]})
    async with _paired(tmp_path) as pair:
        breaks = asyncio.Event()
        begun = (ROLE + token("Hello"),)
        pair.decode.plays(cut_after(breaks, *begun) if dies else stream_until(breaks, begun, (given_up, DONE)))
        pair.decode.scripts.append(stream(*GOOD_STREAM))
        async with ask(pair.session, pair.gateway.http_url, max_tokens=7) as response:
            assert await response.content.readexactly(len(begun[0])) == begun[0]
            breaks.set()
            rest = await response.read()
        assert rest.startswith(token("Hello"))
        assert rest.endswith(DONE)
        for engine in (pair.prefill, pair.decode):
            *_, last = (json.loads(each.body) for each in engine.received)
            assert last["messages"][-1] == {"role": "assistant", "content": "Hello"}
            assert last["continue_final_message"] is True
        await pair.comes_to_rest()


@pytest.mark.parametrize("stage", ["prefill", "decode", "answering"])
async def test_a_client_that_leaves_reaches_the_engine_that_works_for_it(tmp_path: Path, stage: str) -> None:
    async with _paired(tmp_path) as pair:
        if stage == "prefill":
            pair.prefill.plays(hang)
        pair.decode.plays(hang if stage == "decode" else stream_and_hang(ROLE + token("Hello")))
        working = pair.prefill if stage == "prefill" else pair.decode
        async with in_background(_answered(pair)):
            await working.arrived.reaches(1)
            if stage == "answering":
                await until(lambda: pair.books[3] == 1)
        await working.aborted.reaches(1)
        await pair.comes_to_rest()


async def test_progress_is_counted_while_others_come(tmp_path: Path) -> None:
    """Progress of a stream is read when the next request goes to its decode worker."""
    async with _paired(tmp_path) as pair:
        tokens = [token(f"t{number}") for number in range(40)]
        pair.decode.plays(stream_and_hang(ROLE, *tokens), stream(*GOOD_STREAM))
        pool = decode_pools_of(pair.gateway.core).get(PoolName("chat"))
        assert pool is not None
        async with in_background(_answered(pair)), asyncio.timeout(ENOUGH_S):
            await until(lambda: pair.books[3] == 1)
            while pool.tier.figures(0).groups[0].load_max < 22 + len(tokens):
                await _answered(pair)
        await pair.comes_to_rest()


async def test_a_whole_answer_is_put_together_from_a_stream_as_the_engine_would_have_said_it(tmp_path: Path) -> None:
    """Recorded answers are those of a real vLLM."""
    async with _paired(tmp_path) as pair:
        pair.prefill.plays(answer(body=_recorded("chat.prefill.json")))
        pair.decode.plays(stream(_recorded("chat.stream.sse")))
        async with ask(pair.session, pair.gateway.http_url, stream=False) as response:
            assert (response.status, response.headers["content-type"]) == (200, "application/json")
            assert await response.read() == _recorded("chat.whole.json")
        written = json.loads(pair.decode.received[0].body)
        assert (written["stream"], written["stream_options"]) == (True, {"include_usage": True})
        await pair.comes_to_rest()


def _recorded(name: str) -> bytes:
    return (Path(__file__).parents[1] / "recordings/vllm-0.32.0" / name).read_bytes()


@asynccontextmanager
async def _meeting(folder: Path, bootstrap: PagesEngine) -> AsyncIterator[Pair]:
    """A pair over Mooncake; `bootstrap` is the prefill worker's bootstrap server."""
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(FakeEngine().serving())
        decode = await stack.enter_async_context(FakeEngine().serving())
        await stack.enter_async_context(bootstrap.serving())
        prefill.plays(answer())
        region = _region(folder, prefill, decode, connector="mooncake", bootstrap_port=int(bootstrap.url.split(":")[2]))
        path = folder / "us.yaml"
        path.write_text(yaml.safe_dump(region))
        gateway = await stack.enter_async_context(serving_file(path))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Pair(prefill, decode, gateway, session)


_MET = Page(b'{"0":{"engine_id":"engine-of-p","worker_addr":{"0":{"0":"addr"}}}}')


async def test_engines_that_meet_are_asked_at_once(tmp_path: Path) -> None:
    bootstrap = PagesEngine({"/query": _MET})
    async with _meeting(tmp_path, bootstrap) as pair:
        await until(lambda: free_replicas(pair.gateway) == 2)
        gate = asyncio.Event()
        pair.prefill.plays(hang)
        pair.decode.plays(stream_until(gate, (ROLE + token("Hello"),), (*GOOD_STREAM[1:],)))

        async def asks() -> None:
            assert await _answered(pair) == (200, ROLE + token("Hello") + b"".join(GOOD_STREAM[1:]))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asks())
            await pair.prefill.arrived.reaches(1)
            await pair.decode.arrived.reaches(1)
            gate.set()
        (read,), (written,) = pair.prefill.received, pair.decode.received
        first, second = (json.loads(each.body)["kv_transfer_params"] for each in (read, written))
        assert first["transfer_id"] == second["transfer_id"]
        assert (second["remote_bootstrap_addr"], second["remote_engine_id"]) == (bootstrap.url, "engine-of-p")
        await pair.comes_to_rest()


async def test_a_prefill_that_fails_takes_its_decode_along(tmp_path: Path) -> None:
    async with _meeting(tmp_path, PagesEngine({"/query": _MET})) as pair:
        await until(lambda: free_replicas(pair.gateway) == 2)
        pair.prefill.plays(answer(500, b'{"error":{"message":"no","code":500}}'), answer())
        pair.decode.plays(hang, stream(*GOOD_STREAM))
        assert await _answered(pair) == (200, b"".join(GOOD_STREAM))
        await pair.decode.aborted.reaches(1)
        ids = [json.loads(each.body)["kv_transfer_params"]["transfer_id"] for each in pair.decode.received]
        assert ids[0] != ids[1], "an engine that waits for the first one is not to take the second for it"
        await pair.comes_to_rest()


async def test_a_prefill_worker_that_does_not_say_where_it_is_met_takes_nothing(tmp_path: Path) -> None:
    bootstrap = PagesEngine({"/query": Page(b"{}")})
    async with _meeting(tmp_path, bootstrap) as pair:
        await until(lambda: bootstrap.asked["/query"] > 0 and free_replicas(pair.gateway) == 1)
        state = pair.gateway.core.replicas.get(ReplicaId("p"))
        assert state is not None
        await until(lambda: "has not said yet where decode workers meet it" in state.detail)
        bootstrap.pages["/query"] = _MET
        await until(lambda: free_replicas(pair.gateway) == 2)


async def test_a_predictor_is_fitted_while_requests_run_and_its_history_outlives_the_process(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    settings = {
        "sections": {
            "decode": {"policy": "br_h", "balance": {"horizon_steps": 8, "refresh_tokens": 4}},
            "prediction": {"requests_min": 5, "refit_interval": "1s", "save_interval": "1s", "kind": "survival"},
        },
        "state": {"folder": str(tmp_path / "state")},
    }
    async with _paired(tmp_path, **settings) as pair:
        pool = decode_pools_of(pair.gateway.core).get(PoolName("chat"))
        assert pool is not None
        assert not pool.predictor.is_ready(0)
        for _ in range(6):
            await _answered(pair, stream_options=None)
        await until(lambda: pool.predictor.is_ready(pair.gateway.core._now_ns or 0))
        while pool.tier.figures(0).is_degraded:
            await _answered(pair)
    async with _paired(tmp_path, **settings) as pair:
        again = decode_pools_of(pair.gateway.core).get(PoolName("chat"))
        assert again is not None
        await until(lambda: len(again.predictor.history) >= 6)
        await until(lambda: again.predictor.is_ready(pair.gateway.core._now_ns or 0))
