"""Batches of OpenAI's API as a client hands them in and fetches their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.core.vocabulary import ModelName

ENDED = ("completed", "failed", "expired", "cancelled")


async def hand_in(session: aiohttp.ClientSession, url: str, model: ModelName, lines: int, tokens: int) -> str:
    """Hand in a batch of so many short requests for so many tokens at a gateway; returns its id. Raises
    aiohttp.ClientError."""
    body = {"model": model, "max_tokens": tokens}
    requests = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
         "body": body | {"messages": [{"role": "user", "content": f"{number}: how are you?"}]}}
        for number in range(lines)
    ]  # fmt: skip
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", b"".join(msgspec.json.encode(each) + b"\n" for each in requests), filename="lines.jsonl")
    async with session.post(f"{url}/files", data=form, raise_for_status=True) as answer:
        file = await answer.json()
    order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    async with session.post(f"{url}/batches", json=order, raise_for_status=True) as answer:
        return str((await answer.json())["id"])


async def told_of(session: aiohttp.ClientSession, url: str, batch: str) -> dict[str, Any]:
    """Batch as a gateway tells it. Raises aiohttp.ClientError."""
    async with session.get(f"{url}/batches/{batch}", raise_for_status=True) as answer:
        told: dict[str, Any] = await answer.json()
        return told


async def fetch(session: aiohttp.ClientSession, url: str, told: dict[str, Any], folder: Path) -> list[Path]:
    """Fetch the files of a batch's results and errors. Raises aiohttp.ClientError."""
    files = []
    for kind in ("output_file_id", "error_file_id"):
        if told.get(kind):
            async with session.get(f"{url}/files/{told[kind]}/content", raise_for_status=True) as answer:
                files.append(folder / f"{told['id']}.{kind}")
                files[-1].write_bytes(await answer.read())
    return files
