"""A mesh is whole once its gateways are attached and have met, whatever was struck; waiting for that has a limit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.demo.layout import lay_out
from loadgen.demo.members import Member, RestartedProcess
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.processes import running_child
from loadgen.demo.scenario import DemoScenario
from loadgen.round_trips import read_round_trips
from loadgen.studies.long.fleet import LongMesh
from loadgen.wan import Wan

GATEWAY = lay_out(DemoScenario()).seats[0]
ATTACHED = {
    "id": GATEWAY.gateway_id, "condition": "up", "attached": True, "taken": 1, "pushed": 1, "replicas_owned": True,
}  # fmt: skip
PEER = {"usable": True, "models": [{"available": 1}]}


def state(*, gateways: list[dict[str, Any]] | None = None, peers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """State that the controller and the gateway report alike."""
    named = [{"gateways": [GATEWAY.gateway_id]}]
    return {"gateways": [ATTACHED] if gateways is None else gateways, "names": named, "peers": peers or [PEER]}


@asynccontextmanager
async def mesh_of(states: list[dict[str, Any]], log: Path) -> AsyncIterator[LongMesh]:
    """A mesh whose members report one state after the other, and the last one from then on."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(states.pop(0) if len(states) > 1 else states[0])

    app = web.Application()
    app.router.add_get("/admin/state", answer)
    async with TestServer(app) as server, asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        url = str(server.make_url("")).rstrip("/")
        start = partial(
            running_child, "controller", [], log, tasks, runner=[sys.executable, "-c", "import time; time.sleep(60)"]
        )
        controller = RestartedProcess(start, url, stack)
        await controller.start()
        member = Member(GATEWAY, start, stack)
        member.admin = url
        named = NamedMesh(url, (), {})
        yield LongMesh(
            {str(member.gateway_id): member},
            {},
            controller,
            url,
            named,
            Wan(read_round_trips(DemoScenario().round_trips_file)),
        )


async def test_all_is_whole_once_gateways_are_attached_and_have_met(tmp_path: Path) -> None:
    away, alone = state(gateways=[{**ATTACHED, "condition": "lost"}]), state(peers=[{**PEER, "usable": False}])
    states = [away, away, state(), alone, alone, state()]
    async with mesh_of(states, tmp_path / "log") as mesh:
        assert await mesh.becomes_whole(None, 30.0)
    assert states == [state()], "each state before was waited out"


@pytest.mark.parametrize("last", [
    state(gateways=[]), state(gateways=[{**ATTACHED, "attached": False}]), state(peers=[{**PEER, "usable": False}]),
])  # fmt: skip
async def test_waiting_for_what_never_is_whole_ends(last: dict[str, Any], tmp_path: Path) -> None:
    async with mesh_of([last], tmp_path / "log") as mesh:
        assert not await mesh.becomes_whole(None, 0.3)


async def test_the_process_that_was_struck_has_to_be_ready_too(tmp_path: Path) -> None:
    async with mesh_of([state()], tmp_path / "log") as mesh:
        assert not await mesh.becomes_whole(mesh.controller, 0.3), "its address answers 404"
