"""Two controllers as processes, on one shared store."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from controller.store.config import StoreConfig
from controller.store.opening import open_store
from controller.store.store import Contents
from mesh.clock import Clock
from tests.support.controllers import ControllerProcess, controller_file, controller_started, read_file
from tests.support.gateways import until

FREEZE = {"order": {"order": "freeze", "reason": "a late order"}, "by": "a test"}


@dataclass(frozen=True)
class SharedStore:
    """Shared store as a controller's config file names it."""

    section: dict[str, Any]

    def file(self, folder: Path, name: str, **more: object) -> Path:
        return controller_file(folder / name, **self._keys(folder / name, name), **more)

    def config(self, folder: Path) -> StoreConfig:
        return read_file(folder / "reader", **self._keys(folder / "reader", "reader")).sections.store

    def _keys(self, folder: Path, name: str) -> dict[str, Any]:
        return {"controller": name, "store": self.section, "history": {"path": str(folder / "history")}}

    async def read(self, folder: Path) -> Contents:
        store = await open_store(self.config(folder), Clock())
        try:
            return await store.read()
        finally:
            await store.close()


@dataclass
class Pair:
    leader: ControllerProcess
    other: ControllerProcess


@asynccontextmanager
async def pair(shared: SharedStore, folder: Path, **more: object) -> AsyncIterator[Pair]:
    """Start two controllers: the first leads, the second stands by."""
    async with controller_started(shared.file(folder, "ctl-1", **more)) as leader:
        await leader.until_ready()
        async with controller_started(shared.file(folder, "ctl-2", **more)) as other:
            await other.until_standing_by()
            yield Pair(leader, other)


async def asked(controller: ControllerProcess, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Send a request to the controller's admin address; return the status and the decoded body."""
    method = "GET" if body is None else "POST"
    async with aiohttp.ClientSession() as session:
        async with session.request(method, controller.admin_url + path, json=body) as answer:
            return answer.status, json.loads(await answer.read())


def stop(controller: ControllerProcess) -> None:
    controller.process.send_signal(signal.SIGSTOP)


def resume(controller: ControllerProcess) -> None:
    controller.process.send_signal(signal.SIGCONT)


async def until_logged(controller: ControllerProcess, event: str) -> dict[str, Any]:
    await until(lambda: any(line["event"] == event for line in controller.log_lines))
    return next(line for line in controller.log_lines if line["event"] == event)
