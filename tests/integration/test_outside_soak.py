"""Kills and samples of a soak end with its load, and a slow start loses nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.demo.layout import lay_out
from loadgen.demo.members import Member, RestartedProcess
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.processes import DemoFailure, running_child
from loadgen.demo.scenario import DemoScenario
from loadgen.round_trips import read_round_trips
from loadgen.studies.long.fleet import LongMesh
from loadgen.studies.outside.soak import PlannedKill
from loadgen.studies.outside.soaking import SoakPlay
from loadgen.wan import Wan

SEAT = lay_out(DemoScenario()).seats[0]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
ANSWERED = """# TYPE nightside_requests_total counter
nightside_requests_total{outcome="completed"} 1
"""
SOON, LATER = PlannedKill(0.0, "engine"), PlannedKill(1e6, "engine")
HOUR_S = 3600.0


class SlowEngine(RestartedProcess):
    """Engine that is not ready in time; `restarted` is set once that is known."""

    restarted: asyncio.Event

    async def until_ready(self) -> None:
        self.restarted.set()
        raise DemoFailure("engine was not ready after 30 s")


@dataclass
class Playing:
    play: SoakPlay
    engine: SlowEngine
    lines: list[str]


@asynccontextmanager
async def playing(folder: Path, page: str = ANSWERED) -> AsyncIterator[Playing]:
    """A soak of a gateway whose metrics page is this one."""
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=page)

    app.router.add_get("/metrics", answer)
    async with TestServer(app) as server, asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        url = str(server.make_url("")).rstrip("/")
        start = partial(running_child, "sleeper", [], folder / "log", tasks, runner=SLEEPS)
        controller, engine, gateway = (
            RestartedProcess(start, url, stack),
            SlowEngine(start, url, stack),
            Member(SEAT, start, stack),
        )
        gateway.admin, engine.restarted = url, asyncio.Event()
        for each in (controller, engine, gateway):
            await each.start()
        wan = Wan(read_round_trips(DemoScenario().round_trips_file))
        mesh = LongMesh({"gw": gateway}, {"engine": engine}, controller, url, NamedMesh(url, (), {}), wan)
        lines: list[str] = []
        yield Playing(SoakPlay(mesh, DemoScenario(), lines.append, down_s=0.0), engine, lines)


async def test_a_slow_start_is_waited_for_and_recorded_when_the_load_ends_meanwhile(tmp_path: Path) -> None:
    async with playing(tmp_path) as soak:
        before = soak.engine.child.pid
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(soak.play.follow(HOUR_S, [SOON, LATER]))
            await soak.engine.restarted.wait()
            soak.play.load_ended.set()
        (kill,) = soak.play.kills
        assert (kill.name, kill.is_ready, kill.whole_ns) == ("engine", False, None)
        assert kill.ready_ns >= kill.dead_ns
        assert soak.engine.child.pid != before
        assert "engine killed; not ready after" in soak.lines[0]
        assert soak.play.loads


async def test_a_kill_that_is_due_after_the_time_is_left_out(tmp_path: Path) -> None:
    async with playing(tmp_path) as soak:
        await soak.play.follow(0.0, [SOON])
        assert soak.play.began_ns > 0
        assert soak.play.kills == []


async def test_a_load_that_never_began_ends_all(tmp_path: Path) -> None:
    async with playing(tmp_path, page="") as soak:
        soak.play.load_ended.set()
        await soak.play.follow(HOUR_S, [SOON])
        assert (soak.play.began_ns, soak.play.kills, soak.play.loads) == (0, [], [])
