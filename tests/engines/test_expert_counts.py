"""The plug-in for vLLM that counts experts, in real engines with a tiny random MoE.

Expected counts come from an older vLLM that reports the experts picked by every token: `routed_experts`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engines.calls import FETCHED
from tests.engines.conftest import Pair, needs
from tests.engines.real import (
    KV_BLOCK_TOKENS,
    ORACLE_FOLDER,
    PIECE_TOKENS,
    VLLM_FOLDER,
    Engine,
    Model,
    all_up,
    decode_worker,
    experts,
    prefill_worker,
)
from tests.support.core import MODEL
from tests.support.expert_counts import unpacked

pytestmark = pytest.mark.timeout(900)

KEY = "nightside_expert_counts"
LAYERS, EXPERTS, TOP_K = (0, 2, 3), 32, 4
"""Shape of the model in tests/engines/tiny_model.py, whose second layer is dense."""
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}
TOKENS = 12


@dataclass(frozen=True, slots=True)
class Counting:
    """Engines: `on` has the plug-in, `off` has not, `oracle` is the older one."""

    on: Engine
    off: Engine
    oracle: Engine


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibration") / "recorded.jsonl"


@pytest.fixture(scope="session")
def running_counting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plugin: Path, calibration: Path
) -> Iterator[Counting]:
    needs(VLLM_FOLDER, request.config)
    needs(ORACLE_FOLDER, request.config)
    folder = tmp_path_factory.mktemp("experts")
    record = {"additional-config": json.dumps({KEY: {"record": str(calibration)}})}
    older = Model("tiny-moe", ORACLE_FOLDER, (plugin,))
    counting = Counting(
        experts(folder / "on.log", Model("tiny-moe", plugins=(plugin,)), record),
        experts(folder / "off.log", Model("tiny-moe"), {}),
        experts(folder / "oracle.log", older, {}, "--enable-return-routed-experts"),
    )
    engines = (counting.on, counting.off, counting.oracle)
    try:
        asyncio.run(all_up(engines))
        yield counting
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture
async def counting(running_counting: Counting) -> Counting:
    await running_counting.on.until_holding(0)
    return running_counting


def words(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(3, 2000) for _ in range(tokens)]


async def complete(
    session: aiohttp.ClientSession, engine: Engine, prompt: Sequence[int], **more: object
) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "prompt": list(prompt),
        "temperature": 0,
        "max_tokens": 1,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    async with session.post(f"{engine.url}/v1/completions", json=body) as answer:
        said: dict[str, Any] = await answer.json()
        assert answer.status == 200, said
        return said


def read(said: dict[str, Any], prompt: Sequence[int]) -> list[list[int]]:
    """Counts of an answer, layers by experts."""
    counts = said["kv_transfer_params"][KEY]
    told = (counts["v"], counts["layers"], counts["experts"], counts["tokens"])
    assert told == (1, len(LAYERS), EXPERTS, len(prompt))
    assert counts["model"].startswith("Qwen3MoeForCausalLM/")
    table: list[list[int]] = np.array(unpacked(counts["counts"], "<u2")).reshape(len(LAYERS), EXPERTS).tolist()
    assert {sum(layer) for layer in table} == {len(prompt) * TOP_K}
    return table


async def counted(
    session: aiohttp.ClientSession, engine: Engine, prompt: Sequence[int], **more: object
) -> list[list[int]]:
    return read(await complete(session, engine, prompt, kv_transfer_params={KEY: True}, **more), prompt)


async def picked(session: aiohttp.ClientSession, oracle: Engine, prompt: Sequence[int], **more: object) -> NDArray[Any]:
    """Experts picked, as tokens by layers by rank, for the prompt and all generated tokens but the last."""
    said = await complete(session, oracle, prompt, **more)
    return np.load(io.BytesIO(base64.b64decode(said["choices"][0]["routed_experts"])))  # type: ignore[no-any-return]


def histogram(picks: NDArray[Any]) -> list[list[int]]:
    return [np.bincount(picks[:, layer].ravel(), minlength=EXPERTS).tolist() for layer in LAYERS]


async def expected(session: aiohttp.ClientSession, oracle: Engine, prompt: Sequence[int]) -> list[list[int]]:
    return histogram((await picked(session, oracle, prompt))[: len(prompt)])


async def reset_cache(session: aiohttp.ClientSession, engine: Engine) -> None:
    async with session.post(f"{engine.url}/reset_prefix_cache") as answer:
        assert answer.status == 200


async def hits(engine: Engine) -> float:
    return (await engine.counters())["vllm:prefix_cache_hits_total"]


class TestCounts:
    @pytest.mark.parametrize("tokens", [1, KV_BLOCK_TOKENS, PIECE_TOKENS + 5, 10 * KV_BLOCK_TOKENS, 700])
    async def test_they_are_what_the_gate_picked(
        self, counting: Counting, session: aiohttp.ClientSession, tokens: int
    ) -> None:
        prompt = words(random.Random(tokens), tokens)
        assert await counted(session, counting.on, prompt) == await expected(session, counting.oracle, prompt)

    async def test_a_hit_on_some_a_hit_on_all_and_a_cold_cache_count_the_same(
        self, counting: Counting, session: aiohttp.ClientSession
    ) -> None:
        rng = random.Random(1)
        prompt = words(rng, 9 * KV_BLOCK_TOKENS)
        other = prompt[: 5 * KV_BLOCK_TOKENS + 7] + words(rng, 100)
        right = {True: await expected(session, counting.oracle, other)}
        cold = await counted(session, counting.on, prompt)
        before = await hits(counting.on)
        assert await counted(session, counting.on, other) == right[True]
        assert await hits(counting.on) == before + 5 * KV_BLOCK_TOKENS
        assert await counted(session, counting.on, prompt) == cold
        assert await hits(counting.on) == before + (5 + 8) * KV_BLOCK_TOKENS, "its last block is computed again"
        await reset_cache(session, counting.on)
        assert await counted(session, counting.on, prompt) == cold
        assert await hits(counting.on) == before + (5 + 8) * KV_BLOCK_TOKENS
        assert cold == await expected(session, counting.oracle, prompt)

    async def test_what_was_said_counts_for_whoever_goes_on_from_there(
        self, counting: Counting, session: aiohttp.ClientSession
    ) -> None:
        """Blocks of generated tokens give prefix cache hits as blocks of a prompt do."""
        prompt = words(random.Random(2), 50)
        said = await complete(session, counting.on, prompt, max_tokens=60, min_tokens=60)
        talk = [*prompt, *said["choices"][0]["token_ids"], *words(random.Random(3), 20)]
        before = await hits(counting.on)
        assert await counted(session, counting.on, talk) == await expected(session, counting.oracle, talk)
        assert await hits(counting.on) >= before + 3 * KV_BLOCK_TOKENS

    async def test_many_at_once_that_push_each_other_out(
        self, counting: Counting, session: aiohttp.ClientSession
    ) -> None:
        """Requests need more than the cache holds: blocks are evicted, and preempted requests start again."""
        rng = random.Random(4)
        shared = words(rng, 3 * KV_BLOCK_TOKENS)
        prompts = [shared * (number % 2) + words(rng, 500 + 37 * number) for number in range(8)]
        before = await counting.on.counters()
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(counted(session, counting.on, prompt, max_tokens=700, min_tokens=700))
                for prompt in prompts
            ]
        after = await counting.on.counters()
        assert after["vllm:num_preemptions_total"] > before["vllm:num_preemptions_total"]
        for prompt, task in zip(prompts, asked, strict=True):
            assert task.result() == await expected(session, counting.oracle, prompt)

    async def test_nobody_is_told_who_did_not_ask(self, counting: Counting, session: aiohttp.ClientSession) -> None:
        for params in (None, {}, {KEY: False}, {"do_remote_prefill": False}):
            said = await complete(session, counting.on, [5, 6, 7], kv_transfer_params=params)
            assert KEY not in (said["kv_transfer_params"] or {})

    async def test_what_is_said_is_what_is_said_without_it(
        self, counting: Counting, session: aiohttp.ClientSession
    ) -> None:
        rng = random.Random(5)
        shared = words(rng, 200)
        for prompt in [words(rng, 20), shared, [*shared, *words(rng, 150)], words(rng, 400), shared]:
            asked = {"max_tokens": 40, "min_tokens": 40, "logprobs": 3}
            on = await complete(session, counting.on, prompt, kv_transfer_params={KEY: True}, **asked)
            off = await complete(session, counting.off, prompt, **asked)
            assert on["choices"] == off["choices"]
            assert on["usage"] == off["usage"]


class TestOnAnAccelerator:
    def test_rows_there_are_rows_here(self, request: pytest.FixtureRequest, plugin: Path) -> None:
        """Compares the accelerator's code with the host's; on a machine without an accelerator both run on the host."""
        needs(VLLM_FOLDER, request.config)
        python = VLLM_FOLDER / "bin/python"
        done = subprocess.run(
            [python, "-c", COMPARE], env={"PYTHONPATH": str(plugin)}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "equal\n"


COMPARE = """
import numpy as np, torch
from vllm_expert_counts.device_rows import DeviceRows
from vllm_expert_counts.rows import HostRows

rng = np.random.default_rng(0)
for block_tokens in (16, 300):
    shape = (40, block_tokens, 3, 7)
    here, there = HostRows(*shape), DeviceRows(*shape, torch.device("cpu"))
    for step in range(60):
        tokens = int(rng.integers(1, 200))
        picks = np.stack([rng.permuted(np.arange(7, dtype=np.int32)[None].repeat(tokens, 0), axis=1)[:, :2]] * 3, 1)
        some = np.flatnonzero(rng.random(tokens) < 0.8)
        blocks = rng.integers(0, 40, len(some))
        fresh = np.unique(blocks)
        for rows, seen in ((here, picks), (there, torch.from_numpy(picks))):
            rows.clear(fresh)
            rows.add(blocks, some, seen)
            rows.copy(1, 2)
        asked = rng.integers(0, 40, 9)
        assert (here.total(asked)() == there.total(asked)()).all()
        assert (here.of_tokens(some, picks)() == there.of_tokens(some, torch.from_numpy(picks))()).all()
        assert there.total(asked)().dtype == np.uint32
    assert here.nbytes == there.nbytes
print("equal")
"""


class TestRecording:
    async def test_prompts_and_answers_are_recorded(
        self, counting: Counting, session: aiohttp.ClientSession, calibration: Path
    ) -> None:
        prompt = words(random.Random(6), 77)
        said = await complete(
            session, counting.on, prompt, max_tokens=TOKENS, vllm_xargs={"document": "page 7"}, request_id="recorded-1"
        )
        picks = await picked(session, counting.oracle, prompt, max_tokens=TOKENS)
        assert len(picks) == len(prompt) + TOKENS - 1
        await complete(session, counting.on, [5])  # the next step tells the worker that the last request is over
        async with asyncio.timeout(30):
            while not (found := [line for line in recorded(calibration) if "recorded-1" in line["id"]]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # waits for another process
        (line,) = found
        assert said["id"] in line["id"]
        assert (line["v"], line["document"], line["steps"]) == (1, "page 7", TOKENS - 1)
        shape = (line["layers"], line["experts"])
        assert shape == (len(LAYERS), EXPERTS)
        assert np.array(unpacked(line["prefill"], "<u2")).reshape(shape).tolist() == histogram(picks[: len(prompt)])
        assert np.array(unpacked(line["decode"], "<u4")).reshape(shape).tolist() == histogram(picks[len(prompt) :])


def recorded(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="session")
def running_moe_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plugin: Path
) -> Iterator[Pair]:
    needs(VLLM_FOLDER, request.config)
    folder = tmp_path_factory.mktemp("moe-pair")
    model = Model("tiny-moe", plugins=(plugin,))
    both = decode_worker(folder / "decode.log", model, role="kv_both")  # a pure decode worker counts nothing
    pair = Pair(prefill_worker(folder / "prefill.log", model), both)
    try:
        asyncio.run(all_up(pair))
        yield pair
    finally:
        for engine in pair:
            engine.kill()


class TestPair:
    @pytest.mark.parametrize("hit", [False, True], ids=["cold", "partial hit"])
    async def test_counts_come_with_the_hand_over(
        self, running_moe_pair: Pair, running_counting: Counting, session: aiohttp.ClientSession, hit: bool
    ) -> None:
        pair, counting = running_moe_pair, running_counting
        rng = random.Random(7 + hit)
        prompt = words(rng, 300)
        if hit:
            await complete(session, pair.prefill, prompt[:170])
        said = await complete(session, pair.prefill, prompt, kv_transfer_params=HAND_OVER)
        assert read(said, prompt) == await expected(session, counting.oracle, prompt)
        params = said["kv_transfer_params"]  # passed on whole: not every gateway removes unknown members
        assert params["do_remote_prefill"] is True
        fetched = (await pair.decode.counters())[FETCHED]
        decoded = await complete(
            session, pair.decode, prompt, max_tokens=TOKENS, kv_transfer_params=params, stream=False
        )
        alone = await complete(session, counting.off, prompt, max_tokens=TOKENS)
        assert decoded["choices"] == alone["choices"]
        assert (await pair.decode.counters())[FETCHED] == fetched + len(prompt)

    async def test_what_came_from_elsewhere_is_not_counted(
        self, running_moe_pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        """An engine that fetched a prompt's blocks has no counts for them, and reports none, then or at a later prefix
        hit.
        """
        pair = running_moe_pair
        prompt = words(random.Random(9), 5 * KV_BLOCK_TOKENS + 3)
        handed = await complete(session, pair.prefill, prompt, kv_transfer_params=HAND_OVER)
        decoded = await complete(
            session, pair.decode, prompt, kv_transfer_params={**handed["kv_transfer_params"], KEY: True}
        )
        assert KEY not in (decoded["kv_transfer_params"] or {})
        longer = [*prompt, *words(random.Random(10), 20)]
        for again in (prompt, longer):
            said = await complete(session, pair.decode, again, kv_transfer_params={KEY: True})
            assert KEY not in (said["kv_transfer_params"] or {})
        assert await counted(session, pair.decode, longer[::-1]) == await counted(session, pair.prefill, longer[::-1])


class TestNeverInTheWay:
    async def test_another_version_is_refused_and_serves(
        self, running_counting: Counting, session: aiohttp.ClientSession
    ) -> None:
        oracle = running_counting.oracle
        said = await complete(session, oracle, [5, 6, 7], kv_transfer_params={KEY: True})
        assert said["choices"][0]["token_ids"]
        assert KEY not in (said["kv_transfer_params"] or {})
        assert "expert counts are made for vLLM 0.32" in oracle.log.read_text()

    async def test_a_plug_in_that_fails_is_off_and_the_engine_serves(
        self, running_counting: Counting, session: aiohttp.ClientSession, plugin: Path, tmp_path: Path
    ) -> None:
        """Fails while starting, in the scheduler, and within a layer."""
        broken = [
            ("vllm_expert_counts.worker_hooks:_set_up", "vllm_expert_counts.scheduler_hooks:_take"),
            ("vllm.model_executor.layers.fused_moe.routed_experts_capturer:RoutedExpertsCapturer.capture",),
        ]
        models = [
            Model("tiny-moe", plugins=(plugin, sabotage(tmp_path / str(number), each)))
            for number, each in enumerate(broken)
        ]
        engines = [experts(tmp_path / f"{number}.log", model, {}) for number, model in enumerate(models)]
        try:
            await all_up(engines)
            for engine in engines:
                for length in (5, 150, 150):
                    prompt = words(random.Random(length), length)
                    said = await complete(session, engine, prompt, max_tokens=TOKENS, kv_transfer_params={KEY: True})
                    alone = await complete(session, running_counting.off, prompt, max_tokens=TOKENS)
                    assert said["choices"] == alone["choices"]
                    assert KEY not in (said["kv_transfer_params"] or {})
        finally:
            for engine in engines:
                engine.kill()
        off = [engine.log.read_text().count("are off in the worker: RuntimeError: sabotage") for engine in engines]
        assert off == [1, 1], "each is told once"
        assert "are off in the scheduler: RuntimeError: sabotage" in engines[0].log.read_text()


def sabotage(folder: Path, broken: Sequence[str]) -> Path:
    """Plug-in that breaks the product's plug-in: each `module:name` raises when it is called."""
    (folder / "saboteur-1.dist-info").mkdir(parents=True)
    (folder / "saboteur-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: saboteur\nVersion: 1\n")
    (folder / "saboteur-1.dist-info/entry_points.txt").write_text("[vllm.general_plugins]\nzz = saboteur:register\n")
    (folder / "saboteur.py").write_text(f"BROKEN = {list(broken)!r}\n{SABOTEUR}")
    return folder


SABOTEUR = """
from importlib import import_module


def fail(*_arguments, **_named):
    raise RuntimeError("sabotage")


def register():
    for each in BROKEN:
        module, path = each.split(":")
        owner, *inside = import_module(module), *path.split(".")
        for name in inside[:-1]:
            owner = getattr(owner, name)
        setattr(owner, inside[-1], fail)
"""
