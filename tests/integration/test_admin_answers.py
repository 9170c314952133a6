"""Answers of gateways are read whole by commands, however they arrive."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.features.batches.client import batch_client
from mesh import admin_client
from mesh.admin_client import Admin, AdminFault
from tests.support.listening import listening

TURNS = 20
BODY = b'{"leaving": [{"replica": "r0"}]}'


async def answer_in_segments(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the second half once the client has had turns to take the first for the whole."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY))
    for part in (BODY[:7], BODY[7:]):
        writer.write(part)
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def test_an_answer_in_segments_is_read_whole() -> None:
    async with listening(answer_in_segments) as port:
        answer = await Admin(f"http://127.0.0.1:{port}").answer("GET", "/admin/state")
    assert (answer.status, answer.body) == (200, BODY)


async def test_so_is_one_about_batches() -> None:
    async with listening(answer_in_segments) as port, batch_client(f"http://127.0.0.1:{port}", None, None) as client:
        assert await client.ask("GET", "/v1/batches") == json.loads(BODY)


async def test_one_that_is_too_large_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "ANSWER_BYTES_MAX", len(BODY) - 1)
    async with listening(answer_in_segments) as port:
        with pytest.raises(AdminFault, match="the answer is larger than"):
            await Admin(f"http://127.0.0.1:{port}").answer("GET", "/admin/state")
