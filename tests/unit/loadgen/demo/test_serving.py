"""The death of a demo's gateway is reported with its effects, and the gateway is restarted; a failed restart is a
failure.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from gateway.core.vocabulary import GatewayId
from loadgen.demo.main import with_killed
from loadgen.demo.members import Member
from loadgen.demo.processes import Child, DemoFailure, running_child
from loadgen.demo.scenario import DemoScenario
from loadgen.demo.serving import GatewayRestarter, how_it_ended
from loadgen.demo.watch import ReplicasReturned, Sightings
from mesh.clock import Clock

AP = GatewayId("gw-ap")
SERVED = {AP: frozenset({"r0"})}


class Asleep(Member):
    """Process that does nothing, in place of a gateway."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup, *, fails: bool = False) -> None:
        self.gateway_id = AP
        self.children: list[Child] = []
        self.begun = asyncio.Event()
        self._folder = folder
        self._tasks = tasks
        self._fails = fails

    @property
    def child(self) -> Child:
        return self.children[-1]

    async def start(self) -> None:
        arguments = ["-c", "import threading; threading.Event().wait()"]
        started = asyncio.Event()

        async def run() -> None:
            log, runner = self._folder / "log", [sys.executable]
            async with running_child("it", arguments, log, self._tasks, runner=runner, is_vital=False) as child:
                self.children.append(child)
                started.set()
                await child.ended()

        self._tasks.create_task(run())
        await started.wait()

    async def until_ready(self) -> None:
        if self._fails:
            raise DemoFailure("it was not ready")
        self.begun.set()


class Sees:
    """Observer that sees a death after a second and a return never."""

    def __init__(self) -> None:
        self.lost: list[Mapping[GatewayId, frozenset[str]]] = []

    async def death(self, lost: Mapping[GatewayId, frozenset[str]], within_s: float) -> Sightings:
        self.lost.append(lost)
        moment_ns = Clock().now_ns() + 1_000_000_000
        return Sightings(moment_ns, moment_ns, None)

    async def homecoming(self, member: Member, lost: frozenset[str], within_s: float) -> ReplicasReturned:
        return ReplicasReturned(None, None)


async def test_a_gateway_that_is_killed_is_told_shown_and_begun_again(tmp_path: Path) -> None:
    said: list[str] = []
    sees = Sees()
    async with asyncio.TaskGroup() as tasks:
        member = Asleep(tmp_path, tasks)
        await member.start()
        first = member.child.pid
        keeping = tasks.create_task(GatewayRestarter(SERVED, sees, Clock(), said.append, down_s=0.0).keep(member))
        os.kill(first, signal.SIGKILL)
        await member.begun.wait()
        keeping.cancel()
        await member.child.kill()
    assert said[0] == f"gw-ap: process {first} was ended by SIGKILL."
    assert said[2] == "  its replicas are served by others: after 1.0 s"
    assert said[3] == "  the name leads its clients elsewhere: not seen"
    assert sees.lost == [SERVED]
    assert len(member.children) == 2


async def test_a_gateway_that_cannot_be_begun_again_ends_the_demo(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        member = Asleep(tmp_path, tasks, fails=True)
        await member.start()
        os.kill(member.child.pid, signal.SIGTERM)
        with pytest.raises(DemoFailure, match="it was not ready"):
            await GatewayRestarter({}, None, Clock(), lambda _: None, down_s=0.0).keep(member)
        await member.child.kill()


def test_an_end_is_told_by_its_signal_or_its_status() -> None:
    assert [how_it_ended(-9), how_it_ended(1)] == ["was ended by SIGKILL", "ended with status 1"]


def test_only_a_region_of_the_demo_can_be_killed() -> None:
    assert with_killed(DemoScenario(), "eu-west-1").killed == "eu-west-1"
    with pytest.raises(click.UsageError, match="--kill: mars is no region of the demo"):
        with_killed(DemoScenario(), "mars")
