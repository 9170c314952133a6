"""Controllers for tests: files, controllers in this process and as processes, and gateways that attach to them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import yaml

from controller.config import ControllerFile, read_controller_file
from gateway.core.vocabulary import GatewayId, Place
from gateway.security.development_ca import DevelopmentCa
from mesh.clock import Clock
from mesh.control.vocabulary import Hello
from mesh.tls import MeshTls
from tests.fakes.attached import AttachedGateway, attached
from tests.support.certificates import Files, controller_leaf, mesh_leaf, roots_of
from tests.support.core import regions_document
from tests.support.processes import keep_line
from tests.support.programs import AnyProcess, end, started

QUICK: dict[str, dict[str, Any]] = {
    "decisions": {
        "silence": "300ms",
        "unknown_for": "1s",
        "return_after": "200ms",
        "step": "50ms",
        "further_gateways": 1,
    },
    "probes": {"interval": "50ms", "timeout": "500ms"},
    "link": {"alive_interval": "100ms", "silence_max": "60s"},
}


def controller_document(folder: Path, **more: object) -> dict[str, object]:
    document: dict[str, object] = {
        "controller": "ctl-1",
        "listen": {"grpc": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "store": {"path": str(folder / "state" / "controller.db")},
        "regions": regions_document(),
        **QUICK,
    }
    return document | more


def controller_file(folder: Path, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "controller.yaml"
    path.write_text(yaml.safe_dump(controller_document(folder, **more)))
    return path


def read_file(folder: Path, **more: object) -> ControllerFile:
    return read_controller_file(controller_file(folder, **more), {})


class Mesh:
    """Certificates of one authority for a controller and for gateways."""

    def __init__(self, folder: Path, ca: DevelopmentCa) -> None:
        self.folder = folder
        self.ca = ca

    def controller_tls(self, name: str = "ctl-1") -> dict[str, str]:
        files = Files(self.folder / name)
        files.put(controller_leaf(self.ca, name), roots=roots_of(self.ca))
        return {"certificate": str(files.certificate), "key": str(files.key), "roots": str(files.roots)}

    def gateway_tls(self, name: str, place: Place) -> MeshTls:
        files = Files(self.folder / name)
        files.put(mesh_leaf(self.ca, name, place), roots=roots_of(self.ca))
        return MeshTls(files.mesh(), GatewayId(name), place, Clock())


@asynccontextmanager
async def plain_gateway(address: object, said: Hello) -> AsyncIterator[AttachedGateway]:
    async with grpc.aio.insecure_channel(str(address)) as channel, attached(channel, said) as one:
        yield one


@dataclass
class ControllerProcess:
    process: AnyProcess
    grpc_address: str = ""
    admin_url: str = ""
    term: int = 0
    log_lines: list[dict[str, Any]] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            keep_line(line, self.log_lines, self.other_lines)

    async def until_ready(self) -> None:
        said = await self._said()
        assert said["event"] == "ready", "it says where the controller is reached"
        self.grpc_address, self.admin_url, self.term = said["gateways"], said["admin"], said["term"]

    async def until_standing_by(self) -> None:
        said = await self._said()
        assert said["event"] == "standby", "it says that another leads"
        self.admin_url = said["admin"]

    async def _said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return said

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def controller_process(
    file: Path, *, started_by: Sequence[str] = (), fresh: bool = False
) -> AsyncIterator[ControllerProcess]:
    """Run a controller until it reports ready. It is killed at the end if it has not exited by itself.

    `started_by` and `fresh` are those of `started`.
    """
    async with controller_started(file, started_by=started_by, fresh=fresh) as running:
        await running.until_ready()
        yield running


@asynccontextmanager
async def controller_started(
    file: Path, *, started_by: Sequence[str] = (), fresh: bool = False
) -> AsyncIterator[ControllerProcess]:
    """Run a controller that may have to stand by first. It is killed at the end if it has not exited by itself."""
    starting = started("controller", "run", file, started_by=started_by, fresh=fresh)
    async with starting as process, asyncio.TaskGroup() as tasks:
        running = ControllerProcess(process)
        tasks.create_task(running.read_log())
        try:
            yield running
        finally:
            await end(process)
    assert not running.other_lines, f"no JSON: {running.other_lines}"
