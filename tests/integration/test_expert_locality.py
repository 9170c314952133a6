"""Expert locality behind a whole gateway: emulated prefill workers report the experts of a prompt, the request goes to
the decode worker that serves those, and the counts go no further.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml

from gateway.app.gateway import GatewayHandle
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.expert_locality.artifact import EldrArtifact, MoeShape
from gateway.core.nearness import SignatureState
from gateway.core.vocabulary import Connector, PoolName, ReplicaRole
from gateway.features.expert_locality.files import eldr_file
from gateway.records.journal import replay
from loadgen.engine.expert_counts import ExpertShape, counts_of
from loadgen.engine.handoff import HandoffConfig
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from loadgen.engine.tokens import PromptMessage, chat_prompt
from tests.support.core import US
from tests.support.gateways import free_replicas, region_document, serving_file, until
from tests.support.metrics_pages import sums_by_name

SHAPE = ExpertShape(3, 16, 2)
MODEL = "m"
LAW, CODE = "whereas the party of the first part " * 6, "def f(x): return [x + 1 for x in y] " * 6
READER = EngineServerConfig(
    model=MODEL,
    engine=TINY,
    time_scale=0.05,
    ignore_eos=True,
    handoff=HandoffConfig(Connector.NIXL, ReplicaRole.PREFILL, lease_s=10_000.0, transfer_s=0.001, experts=SHAPE),
)
WRITER = replace(READER, handoff=HandoffConfig(Connector.NIXL, ReplicaRole.DECODE, lease_s=10_000.0, transfer_s=0.001))


def artifact(*texts: str) -> EldrArtifact:
    """Artifact with one centroid per text: the direction of a prompt of that text alone."""
    prompts = [chat_prompt([PromptMessage("user", text)]) for text in texts]
    rows = np.stack([counts_of(prompt, SHAPE).astype(np.float32).ravel() for prompt in prompts])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ones = np.ones((SHAPE.layers, SHAPE.experts), "<f4").tobytes()
    return EldrArtifact(
        MoeShape(SHAPE.layers, SHAPE.experts, MODEL), (0, 1, 2), ones, len(texts), rows.astype("<f4").tobytes()
    )


@dataclass
class Scene:
    gateway: GatewayHandle
    session: aiohttp.ClientSession
    writers: list[EngineServer]
    explained: list[str] = field(default_factory=list)
    _before: list[float] = field(default_factory=lambda: [0.0, 0.0])

    async def ask(self, text: str) -> int:
        """Index of the decode worker that answered."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 3, "stream": True}
        url = f"{self.gateway.http_url}/v1/chat/completions"
        async with self.session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
            request_id = response.headers["x-request-id"]
        async with self.session.get(f"{self.gateway.admin_url}/admin/explain/{request_id}") as response:
            self.explained.append(await response.text())
        written = [await self._generated(each) for each in self.writers]
        (answered,) = [at for at, each in enumerate(written) if each > self._before[at]]
        self._before = written
        return answered

    async def _generated(self, writer: EngineServer) -> float:
        async with self.session.get(f"{writer.url}/metrics") as response:
            return sums_by_name(await response.text())["vllm:generation_tokens_total"]

    def signatures(self) -> dict[SignatureState, int]:
        pool = decode_pools_of(self.gateway.core).get(PoolName("chat"))
        assert pool is not None
        return {state: count for state, count in pool.tier.figures(0).signatures.items() if count}


@asynccontextmanager
async def scene(folder: Path, first: EldrArtifact | None) -> AsyncIterator[Scene]:
    path = folder / "eldr.json"
    if first is not None:
        eldr_file(path).write(first)
    async with AsyncExitStack() as stack:
        reader, *writers = await stack.enter_async_context(serve_engines([READER, WRITER, WRITER]))
        engine: dict[str, Any] = {"models": [MODEL], "pool": "chat"}
        replicas = [{"id": "p", "url": reader.url, "role": "prefill", **engine}]
        replicas += [{"id": f"d{at}", "url": each.url, "role": "decode", **engine} for at, each in enumerate(writers)]
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
                    "expert_locality": {"artifact": str(path), "look_interval": "1s"},
                }
            ],
            journal={"folder": str(folder / "journal")},
            audit={"folder": str(folder / "audit")},
        )
        region = folder / "us.yaml"
        region.write_text(yaml.safe_dump(document))
        gateway = await stack.enter_async_context(serving_file(region))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: free_replicas(gateway) == 3)
        yield Scene(gateway, session, writers)


def clusters(one: Scene) -> int:
    pool = decode_pools_of(one.gateway.core).get(PoolName("chat"))
    return 0 if pool is None else pool.tier.seats.clusters


async def problem(one: Scene) -> str:
    async with one.session.get(f"{one.gateway.admin_url}/admin/state") as response:
        told: str = (await response.json())["expert_locality"]["chat"]["problem"]
        return told


async def test_requests_go_where_their_experts_are_and_what_was_told_of_them_goes_no_further(tmp_path: Path) -> None:
    async with scene(tmp_path, artifact(LAW, CODE)) as one:
        await until(lambda: clusters(one) == 2)
        went = [await one.ask(text) for text in (LAW, CODE, LAW + "hereby", CODE + "yield", LAW)]
        assert went == [0, 1, 0, 1, 0]
        assert one.signatures() == {SignatureState.USED: 5}
        async with one.session.get(f"{one.gateway.admin_url}/metrics") as response:
            assert 'nightside_decode_signatures_total{pool="chat",state="used"} 5.0' in await response.text()
        explained = "".join(one.explained)
        assert "decode" in explained
        async with one.session.get(f"{one.gateway.admin_url}/admin/state") as response:
            state = await response.json()
        assert (state["expert_locality"]["chat"]["clusters"], state["expert_locality"]["chat"]["problem"]) == (2, "")
    (journal,) = (tmp_path / "journal").glob("*.journal")
    assert replay([journal]).divergence is None
    assert b"ArtifactReady" in journal.read_bytes()
    kept = {path: path.read_text() for path in (tmp_path / "audit").rglob("*") if path.is_file()}
    assert kept
    for text in (explained, *kept.values(), journal.read_text()):
        assert "expert_counts" not in text
    assert "cosines" not in explained + "".join(kept.values())


async def test_an_artifact_that_comes_late_or_is_spoilt_is_told_of_and_requests_are_served(tmp_path: Path) -> None:
    async with scene(tmp_path, None) as one:
        await one.ask(LAW)
        assert one.signatures() == {SignatureState.UNFITTED: 1}
        eldr_file(tmp_path / "eldr.json").write(artifact(LAW, CODE))
        await until(lambda: clusters(one) == 2)
        assert [await one.ask(text) for text in (LAW, CODE)] == [0, 1]
        text = (tmp_path / "eldr.json").read_bytes()
        (tmp_path / "eldr.json").write_bytes(text.replace(b'"clusters":2', b'"clusters":3'))
        while "checksum" not in await problem(one):
            pass
        assert [await one.ask(text) for text in (LAW, CODE)] == [0, 1], "what was there is used on"
        eldr_file(tmp_path / "eldr.json").write(artifact(CODE, LAW))
        while await problem(one):
            pass
        assert [await one.ask(text) for text in (LAW, CODE)] == [1, 0]
