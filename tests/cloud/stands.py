"""A whole controller that publishes at a DNS provider, with gateways as it sees them: a control stream, and a health
page that disappears when a gateway dies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from controller.app import ControllerHandle, serve_controller
from controller.config import read_controller_file
from gateway.core.vocabulary import GatewayId, Place
from mesh.control.vocabulary import PeerHeard
from tests.fakes.attached import AttachedGateway, hello
from tests.support.controllers import plain_gateway
from tests.support.listening import serving_http


class Standing:
    """One gateway as the controller sees it, and how it dies."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.stream: AttachedGateway | None = None
        self._stack = AsyncExitStack()

    async def begin(self, controller: ControllerHandle, place: Place) -> None:
        async def health(_: web.Request) -> web.Response:
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_get("/health", health)
        port = await self._stack.enter_async_context(serving_http(web.AppRunner(app)))
        said = hello(self.name, place, address=self.address, health_url=f"http://127.0.0.1:{port}/health")
        self.stream = await self._stack.enter_async_context(plain_gateway(controller.grpc_address, said))

    async def die(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def publishing(
    folder: Path, records: dict[str, Any], places: dict[str, tuple[Place, str]], **more: Any
) -> AsyncIterator[tuple[ControllerHandle, dict[str, Standing]]]:
    """Run a controller with these gateways, by name, in their places and at their addresses."""
    document = {
        "controller": "ctl-1",
        "regions": {place.region: str(place.jurisdiction) for place, _ in places.values()},
        "listen": {"grpc": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "store": {"path": str(folder / "controller.db")},
        "naming": {"zone": "mesh.example"},
        "records": records,
        **more,
    }
    path = written(folder / "controller.yaml", document)
    async with AsyncExitStack() as stack:
        handle = await stack.enter_async_context(serve_controller(read_controller_file(path, {})))
        standing = {name: Standing(name, address) for name, (_, address) in places.items()}
        for name, each in standing.items():
            await each.begin(handle, places[name][0])
            stack.push_async_callback(each.die)
        yield handle, standing


def written(path: Path, document: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


async def kill(name: str, standing: dict[str, Standing]) -> None:
    """Kill a gateway as a process dies: its port refuses connections, and its peers report broken connections."""
    await standing[name].die()
    for other in standing.values():
        if other.name != name and other.stream is not None:
            await other.stream.heard(PeerHeard(GatewayId(name), 10_000_000, is_broken=True))
