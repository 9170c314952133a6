"""One process of a gateway takes over from another while clients come, stream and stay connected; and what becomes of it
where one of the two fails in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import dns.asyncquery
import dns.message
import pytest
import yaml

from controller.app import serve_controller
from gateway.app.hand_over import socket_path
from gateway.core.vocabulary import GatewayId, Place
from gateway.ground.clock import Clock
from gateway.security.keys_editing import add_key
from gateway.takeover.messages import VERSION, Hello, Offer, Ready, Refused, Released
from gateway.takeover.wire import Wire, connect_to
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, USAGE, FakeEngine, stream, stream_until, token
from tests.integration.test_controller import read_file
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.core import EU, MODEL, US
from tests.support.gateways import CHAT, ask, nightside, until
from tests.support.processes import Process, command, gateway_process, region_file, two_regions

GATEWAY = GatewayId("us-1")
BODY = json.dumps(CHAT).encode()
WHOLE = b"".join(GOOD_STREAM)


def lone(folder: Path, engine: FakeEngine, **more: object) -> Path:
    own = {"state": {"folder": str(folder / "state")}, "limits": {"drain": "5m"}, "probes": {"interval": "20ms"}}
    return region_file(folder, GATEWAY, US, engine, **{**own, **more})


def at(folder: Path) -> Path:
    return socket_path(folder / "state", GATEWAY)


@asynccontextmanager
async def taking_over(file: Path) -> AsyncIterator[Process]:
    """The process that comes, once it serves."""
    async with gateway_process(file, run=command("run", file, "--take-over")) as process:
        yield process


async def refused(file: Path) -> str:
    """Why a process does not take over."""
    process = await asyncio.create_subprocess_exec(
        *command("run", file, "--take-over"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    return err.decode().splitlines()[-1]


@dataclass
class Client:
    """Keeps its connection for as long as the gateway does, and tries nothing again: what fails, fails the test."""

    url: str
    tls: ssl.SSLContext | None = None
    headers: str = ""
    answered: int = 0
    connections: int = 0
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)

    async def ask(self) -> bytes:
        """One chat request, to its last byte."""
        await self.begin()
        return await self.finish()

    async def begin(self) -> None:
        """As far as the head of the answer."""
        if self._streams is None:
            host, _, port = self.url.partition("://")[2].rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port), ssl=self.tls)
            self.connections += 1
        reader, writer = self._streams
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{self.headers}"
        writer.write(f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert self.head.startswith("http/1.1 200"), self.head

    async def finish(self) -> bytes:
        assert self._streams is not None
        reader, _ = self._streams
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        self.answered += 1
        if self.is_told_to_leave:
            await self.close()
        return body

    @property
    def is_told_to_leave(self) -> bool:
        return "connection: close" in self.head

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            assert await self.ask() == WHOLE
        await self.close()


class Load:
    """Clients that come again and again, some with a connection that they keep and some with one for each request."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self.keeping = [Client(url, tls) for _ in range(6)]
        self.coming = [Client(url, tls, headers="connection: close\r\n") for _ in range(2)]

    @property
    def answered(self) -> int:
        return min(each.answered for each in (*self.keeping, *self.coming))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for each in (*self.keeping, *self.coming):
                tasks.create_task(each.ask_until(over))
            await self.goes_on()
            yield
            await self.goes_on()
            over.set()

    async def goes_on(self) -> None:
        """All of them are served, several times."""
        before = {id(each): each.answered for each in (*self.keeping, *self.coming)}
        await until(lambda: all(each.answered >= before[id(each)] + 5 for each in (*self.keeping, *self.coming)))


def with_tls(folder: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    ca, files = new_ca(), Files(folder / "tls")
    files.put(clients_leaf(ca))
    listen = {name: "127.0.0.1:0" for name in ("http", "admin", "peers")}
    trusting = ssl.create_default_context(cadata=roots_of(ca).decode())
    return {**listen, "tls": {"certificate": str(files.certificate), "key": str(files.key)}}, trusting


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_under_load_nobody_is_refused_reset_or_cut_off(tmp_path: Path, engine: FakeEngine, is_tls: bool) -> None:
    listen, trusting = with_tls(tmp_path)
    file = lone(tmp_path, engine, **({"listen": listen} if is_tls else {}))
    gate = asyncio.Event()
    async with gateway_process(file) as old, AsyncExitStack() as later:
        tls = trusting if is_tls else None
        load, streams = Load(old.http_url, tls), [Client(old.http_url, tls) for _ in range(4)]
        idle = Client(old.http_url, tls)
        assert await idle.ask() == WHOLE
        engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
        for each in streams:
            await each.begin()
        engine.plays(stream(*GOOD_STREAM))
        async with load.running():
            new = await later.enter_async_context(taking_over(file))
            assert (new.http_url, new.admin_url) == (old.http_url, old.admin_url)
            await load.goes_on()
            await until(lambda: all(each.connections > 1 for each in load.keeping))
            gate.set()
            assert [await each.finish() for each in streams] == [WHOLE] * 4
            assert old.process.returncode is None, "clients are still connected"
            for each in (idle, *streams):
                assert await each.ask() == WHOLE
                assert each.is_told_to_leave
            assert await old.process.wait() == 0
            await until_alone(new)
            await later.enter_async_context(taking_over(file))
            await load.goes_on()
            assert await new.process.wait() == 0
            assert await idle.ask() == WHOLE
        await idle.close()


async def until_alone(new: Process) -> None:
    await new.until_logged("the process before has gone")
