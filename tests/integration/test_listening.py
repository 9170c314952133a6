from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from mesh.clock import Clock
from mesh.tls import HttpTls
from tests.support.certificates import Files, clients_leaf, new_ca
from tests.support.listening import knock, listening, serving_http, until_dropped


async def wait(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def plain(_: Path) -> AbstractAsyncContextManager[int]:
    return listening(wait)


def with_tls(folder: Path) -> AbstractAsyncContextManager[int]:
    files = Files(folder)
    files.put(clients_leaf(new_ca()))
    return listening(wait, tls=HttpTls(files.listen(), Clock()).context)


def http(_: Path) -> AbstractAsyncContextManager[int]:
    return serving_http(web.AppRunner(web.Application()))


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("server", [plain, with_tls, http])
async def test_who_comes_while_a_server_closes_is_dropped(
    tmp_path: Path, server: Callable[[Path], AbstractAsyncContextManager[int]], turns: int
) -> None:
    async with asyncio.timeout(10):
        async with server(tmp_path) as port:
            caller = await knock(port, turns)
        await until_dropped(caller)


async def test_a_talk_that_is_over_closes_its_connection() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async with listening(greet) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


async def test_a_talk_that_fails_is_no_secret() -> None:
    async def fail(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        raise ValueError("no")

    with pytest.raises(ExceptionGroup) as caught:
        async with listening(fail) as port:
            await until_dropped(await knock(port, 0))
    assert caught.group_contains(ValueError, match="no")
