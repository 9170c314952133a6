"""A prefill worker whose hand-offs to a whole gateway are false: the address it gives the decode worker, and the
experts that read the prompt.

The cases are data: `tests/hostile/prefill_answers.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml

from gateway.app.gateway import GatewayHandle
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.expert_locality.artifact import EldrArtifact, MoeShape
from gateway.core.nearness import SignatureState
from gateway.core.vocabulary import PoolName
from gateway.features.expert_locality.files import eldr_file
from tests.fakes.engine import GOOD_STREAM, FakeEngine, answer
from tests.hostile.prefill_answers import PREFILL_CASES, TOLD, PrefillCase, handed
from tests.support.core import US
from tests.support.gateways import ask, free_replicas, region_document, serving_file, until

READ = b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"H"},'
READ += b'"finish_reason":"length"}],"usage":{"prompt_tokens":22,"completion_tokens":1},"kv_transfer_params":%b}'
TRUTH = handed(TOLD)


@dataclass
class Pool:
    prefill: FakeEngine
    decode: FakeEngine
    gateway: GatewayHandle
    session: aiohttp.ClientSession

    async def asked(self) -> tuple[int, bytes]:
        async with ask(self.session, self.gateway.http_url, stream_options={"include_usage": True}) as response:
            return response.status, await response.read()

    def signatures(self) -> dict[SignatureState, int]:
        pool = decode_pools_of(self.gateway.core).get(PoolName("chat"))
        assert pool is not None
        return {state: count for state, count in pool.tier.figures(0).signatures.items() if count}


@asynccontextmanager
async def pool(folder: Path, **prefill: Any) -> AsyncIterator[Pool]:
    ones, centroids = np.ones((2, 2), "<f4").tobytes(), np.eye(2, 4, dtype="<f4").tobytes()
    eldr_file(folder / "eldr.json").write(EldrArtifact(MoeShape(2, 2, "m"), (0, 1), ones, 2, centroids))
    async with AsyncExitStack() as stack:
        reader, writer = [await stack.enter_async_context(FakeEngine().serving()) for _ in range(2)]
        engine = {"models": ["llama"], "pool": "chat"}
        replicas: list[dict[str, Any]] = [
            {"id": "p", "url": reader.url, "role": "prefill", **engine, **prefill},
            {"id": "d", "url": writer.url, "role": "decode", **engine},
        ]
        document = region_document(
            folder,
            "us-1",
            US,
            replicas=replicas,
            pools=[
                {
                    "name": "chat",
                    "kind": "disaggregated",
                    "connector": "nixl",
                    "decode_batch_max": 4,
                    "expert_locality": {"artifact": str(folder / "eldr.json"), "look_interval": "1s"},
                }
            ],
        )
        path = folder / "us.yaml"
        path.write_text(yaml.safe_dump(document))
        gateway = await stack.enter_async_context(serving_file(path))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: free_replicas(gateway) == 2)
        known = decode_pools_of(gateway.core).get(PoolName("chat"))
        assert known is not None
        await until(lambda: known.tier.seats.clusters == 2)
        yield Pool(reader, writer, gateway, session)


@pytest.mark.parametrize("case", PREFILL_CASES, ids=lambda case: case.name)
async def test_a_hand_off_that_lies_costs_one_more_reading_of_the_prompt(case: PrefillCase, tmp_path: Path) -> None:
    own = {"side_channel_hosts": ["10.0.0.7"], "side_channel_port": 5600}
    async with pool(tmp_path, **own) as scene:
        scene.prefill.plays(answer(body=READ % case.params), answer(body=READ % TRUTH))
        assert await scene.asked() == (200, b"".join(GOOD_STREAM))
        (written,) = scene.decode.received
        told = json.loads(written.body)["kv_transfer_params"]
        assert told == json.loads(TRUTH if case.told is None else case.told)
        assert len(scene.prefill.received) == (2 if case.told is None else 1)
        assert scene.gateway.driver.crash is None
        assert sum(scene.signatures().values()) == 1
        assert await scene.asked() == (200, b"".join(GOOD_STREAM)), "and the pool goes on"


async def test_an_engine_that_says_nothing_of_itself_is_met_where_it_answers(tmp_path: Path) -> None:
    """Any port is accepted on the engine's own host: the engine chooses its side channel's port."""
    async with pool(tmp_path) as scene:
        honest = handed(TOLD.replace(b"10.0.0.7", b"127.0.0.1").replace(b"5600", b"41234"))
        scene.prefill.plays(answer(body=READ % TRUTH), answer(body=READ % honest))
        assert await scene.asked() == (200, b"".join(GOOD_STREAM))
        (written,) = scene.decode.received
        assert json.loads(written.body)["kv_transfer_params"] == json.loads(honest)


async def test_the_host_that_is_refused_is_told_to_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host may be that of a vLLM behind a Service, or one that was given no host of its own."""
    async with pool(tmp_path, side_channel_hosts=["10.0.0.7"]) as scene:
        stray = handed(TOLD.replace(b"10.0.0.7", b"10.0.0.8"))
        scene.prefill.plays(answer(body=READ % stray), answer(body=READ % TRUTH))
        assert await scene.asked() == (200, b"".join(GOOD_STREAM))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "side_channel_refused" in line]
    assert [(each["replica"], each["host"]) for each in lines] == [("p", "10.0.0.8")]
