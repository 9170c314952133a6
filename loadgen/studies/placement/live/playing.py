"""Plays every case with every system, round by round, each time on freshly started processes. It judges nothing.

In a round all systems get the same requests of the same users; they rotate in their order.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from rich.console import Console

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.demo.processes import DemoFailure
from loadgen.figures import Figures
from loadgen.interrupts import leaves
from loadgen.live_client import AnswerFailure, EndpointDialect, PartialAnswer, exchange
from loadgen.live_runner import LiveRunner
from loadgen.load.local_mesh import as_demo
from loadgen.load.outcome import LiveRun, live_figures
from loadgen.load.plan import Keys, LiveLimits, plan_of
from loadgen.load.screen import Screen
from loadgen.machine import CpuSampler
from loadgen.simulator.scenario import Scenario
from loadgen.studies.placement.live.cases import LiveCase
from loadgen.studies.placement.live.systems import Answering, LiveFleet, LiveSystem
from loadgen.workload import Message
from mesh.clock import Clock
from mesh.faults import ConfigError

_IN_FLIGHT_MAX = 1_000
_ANSWERS_S = 30.0
_PAUSE_S = 0.2
_LEFT_OUT = ("series", "placements", "regions")
"""Keys of a run's figures that no table shows."""


@dataclass(slots=True)
class Live:
    """All cases, systems and rounds. `runs` and `faults` hold the results so far, however the run ended."""

    cases: Sequence[LiveCase]
    systems: Sequence[LiveSystem]
    rounds: int
    seed: int
    """Seed of the first round; each further round adds one."""
    folder: Path
    """Folder for files and logs."""
    console: Console
    runs: list[Figures] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def play(self) -> None:
        """Play everything; a run that fails is a fault, and the others continue. Raises ConfigError for a wrong
        scenario."""
        total = self.rounds * len(self.cases) * len(self.systems)
        played = 0
        for number in range(self.rounds):
            for at, case in enumerate(self.cases):
                first = (number + at) % len(self.systems)
                for system in [*self.systems[first:], *self.systems[:first]]:
                    played += 1
                    title = f"{played} of {total}: {case.name}, round {number + 1}: {system.name}"
                    await self._play(case, system, number, title)

    async def _play(self, case: LiveCase, system: LiveSystem, number: int, title: str) -> None:
        scenario = case.scenario(self.seed + number)
        folder = self.folder / f"{number + 1}-{case.name}-{system.name}".replace(" ", "-")
        folder.mkdir(parents=True)
        demo = replace(as_demo(scenario, folder), llamacpp=case.llamacpp)
        fleet = LiveFleet(demo, RegionName(scenario.balancer_region or next(iter(scenario.regions))))
        try:
            async with asyncio.TaskGroup() as tasks, system.running(fleet, folder, tasks) as answering:
                figures = await self._send(case, scenario, answering, title, tasks)
            if figures["total"]["completed"]:
                self.runs.append({**figures, "case": case.name, "system": system.name, "round": number + 1})
            else:
                self._fail(title, f"nothing was answered: {figures['total']['failures']}")
        except* (DemoFailure, ConfigError, OSError) as failures:
            why = "; ".join(dict.fromkeys(str(each) or type(each).__name__ for each in leaves(failures)))
            self._fail(title, why)

    def _fail(self, title: str, why: str) -> None:
        self.faults.append(f"{title}: {why}")
        self.console.print(f"{title}: {why}", markup=False, highlight=False, style="red")

    async def _send(
        self, case: LiveCase, scenario: Scenario, answering: Answering, title: str, tasks: asyncio.TaskGroup
    ) -> Figures:
        dialect = EndpointDialect(ModelName(scenario.model), ignore_eos=case.llamacpp is not None)
        runner = LiveRunner(
            plan_of(scenario, answering.urls, Keys(), dialect, LiveLimits(_IN_FLIGHT_MAX)), clock=Clock()
        )
        await _until_all_answer(answering, dialect)
        cpu = CpuSampler((os.getpid(), *answering.pids))
        background = [tasks.create_task(cpu.run()), tasks.create_task(Screen(self.console, title, runner, cpu).run())]
        try:
            await runner.run()
        finally:
            for task in background:
                task.cancel()
        run = LiveRun(title, runner.records, runner.samples, scenario.duration, machine=cpu.use())
        return {key: value for key, value in live_figures(scenario, run).items() if key not in _LEFT_OUT}


async def _until_all_answer(answering: Answering, dialect: EndpointDialect) -> None:
    """Send a small question from each region until it is answered. Raises DemoFailure."""
    last: str | None = ""
    try:
        async with asyncio.timeout(_ANSWERS_S), aiohttp.ClientSession() as session:
            for url in (url for urls in answering.urls.values() for url in urls):
                while (last := await _refusal(session, url, dialect)) is not None:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise DemoFailure(f"no answer within {_ANSWERS_S:.0f} s: {last}") from None


async def _refusal(session: aiohttp.ClientSession, url: str, dialect: EndpointDialect) -> str | None:
    body = dialect.body([Message(role="user", content="ready?")], 1)
    try:
        await exchange(
            session, url + dialect.api.path, headers={}, body=body, answer=PartialAnswer(), on_text=lambda: None
        )
    except (AnswerFailure, aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__
    return None
