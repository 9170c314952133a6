"""A page with OpenAI's SDK for JavaScript, in a real Chromium: it may call a gateway that lists its origin, and goes on
to the name's next address where the first refuses."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from aiohttp import web
from msgspec.structs import replace

from gateway.config.sections import CorsConfig, GatewayConfig
from gateway.security.keys import mint
from tests.support.core import MODEL, US
from tests.support.served import HELLO_ANSWERED, served

PAGE = Path(__file__).parent / "javascript/page.html"


class Site:
    """Website that serves the page and receives what the page was answered (`told`)."""

    def __init__(self, modules: Path) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.origin = ""
        self._modules = modules

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/", self._page)
        app.router.add_post("/told", self._take)
        app.router.add_static("/modules", self._modules)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(body=PAGE.read_bytes(), content_type="text/html")

    async def _take(self, request: web.Request) -> web.Response:
        self.told.put_nowait(await request.json())
        return web.Response()


NAME, DEAD, ALIVE = "mesh.example", "127.0.0.1", "127.0.0.2"
"""Name with two addresses, of which the system's resolver gives the dead one first."""
WITH_HOSTS = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
"""Runs a command that sees another /etc/hosts, from which the system's resolver takes all addresses of a name."""


@asynccontextmanager
async def shown_by(chromium: str, url: str, folder: Path) -> AsyncIterator[None]:
    """Show a page in a Chromium that knows `NAME` by two addresses, the first of which refuses."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{DEAD} {NAME}\n{ALIVE} {NAME}\n")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-features=AsyncDns")  # fmt: skip # Chromium's own resolver takes one address of a name from it
    process = await asyncio.create_subprocess_exec(
        *(*WITH_HOSTS, 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)),
        *(chromium, *options, f"--user-data-dir={folder / 'profile'}", url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def told_to_the_page(
    folder: Path, ports: Callable[[], int], chromium: str, modules: Path, *, is_listed: bool, by_name: bool = False
) -> dict[str, Any]:
    key, kept = mint("page")
    keys = folder / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": [{"id": "page", "hash": str(kept), "tenant": "acme"}]}))
    site = Site(modules)
    async with site.serving():
        origins = (site.origin,) if is_listed else ("https://elsewhere.example.net",)

        def change(config: GatewayConfig) -> GatewayConfig:
            http = replace(config.listen.http, host=ALIVE) if by_name else config.listen.http
            listen = replace(config.listen, http=http)
            return replace(config, keys_file=keys, cors=CorsConfig(origins=origins), listen=listen)

        async with served(folder, ports, change=change) as up:
            base = up.openai_url.replace(ALIVE, NAME) if by_name else up.openai_url
            query = urlencode({"base": base, "key": key, "model": MODEL})
            async with shown_by(chromium, f"{site.origin}/?{query}", folder):
                return await site.told.get()


@pytest.mark.parametrize("by_name", [False, True], ids=["one address", "a first address that refuses"])
async def test_a_page_that_is_listed_calls_a_gateway(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], chromium: str, modules: Path, *, by_name: bool
) -> None:
    told = await told_to_the_page(tmp_path, unused_tcp_port_factory, chromium, modules, is_listed=True, by_name=by_name)
    assert told == {
        "models": [MODEL],
        "whole": HELLO_ANSWERED,
        "region": US.region,
        "streamed": HELLO_ANSWERED,
        "refused": "model_not_found",
    }


async def test_one_that_is_not_gets_nowhere(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], chromium: str, modules: Path
) -> None:
    told = await told_to_the_page(tmp_path, unused_tcp_port_factory, chromium, modules, is_listed=False)
    assert told == {"error": "APIConnectionError: Connection error."}
