"""Batches with OpenAI's and Anthropic's SDKs for JavaScript, unmodified, under Node."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, answer
from tests.support.batches import GOOD_MESSAGE, batches_config, serving
from tests.support.core import MODEL

SCRIPT = Path(__file__).parent / "javascript/batches.mjs"


async def answer_in_shape(exchange: Exchange) -> None:
    body = GOOD_MESSAGE if b"max_tokens" in exchange.received.body else GOOD_ANSWER
    await answer(200, body)(exchange)


async def test_both_hand_in_batches_and_read_their_results(tmp_path: Path, node: str, modules: Path) -> None:
    async with FakeEngine().serving() as engine, serving(batches_config(tmp_path, engine)) as gateway:
        engine.plays(answer_in_shape)
        process = await asyncio.create_subprocess_exec(
            *(node, str(SCRIPT), gateway.http_url, "client", MODEL), cwd=modules.parent, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert json.loads(output) == {
        "counts": {"total": 2, "completed": 2, "failed": 0},
        "metadata": {"for": "test"},
        "outputs": [["a", "Hello"], ["b", "Hello"]],
        "listed": [True],
        "lateCancel": [409, "batch_not_cancellable"],
        "succeeded": 2,
        "results": [["a", "Hello"], ["b", "Hello"]],
        "deleted": True,
        "gone": 404,
    }
