"""`nightside demo`: three regions on this machine under a skewed load: with forwarding, without it, and while a gateway
dies.

It reports what it measured and nothing else, and leaves no process behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import click
from rich.console import Console
from rich.text import Text

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import RegionName
from loadgen.demo.conversation import converse
from loadgen.demo.failover import FailoverReport, kill_and_return
from loadgen.demo.mesh import Mesh, read_prefix_tokens, running_mesh
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import ZONE, has_addresses_of_its_own
from loadgen.demo.report import RunResult
from loadgen.demo.scenario import (
    ROUND_TRIPS_FILE,
    DemoScenario,
    RegionScenario,
    disaggregated_scenario,
    large_scenario,
    real_scenario,
)
from loadgen.demo.serving import GatewayRestarter
from loadgen.demo.snippets import curl_snippet, dig_snippet, openai_snippet
from loadgen.demo.story import (
    ALONE_RUN,
    DEATH_RUN,
    MESH_RUN,
    NO_ADDRESSES,
    DemoStory,
    print_intro,
    print_story,
    story_document,
)
from loadgen.demo.watch import Watch
from loadgen.interrupts import EXIT_INTERRUPTED, ends_by_signal, leaves
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import ClosedLoop, LiveClientGroup, LiveRunner, LoadPlan
from loadgen.load.screen import Screen
from loadgen.machine import CpuSampler
from loadgen.names import NameResolver
from loadgen.round_trips import read_round_trips
from loadgen.workload import MultiTurnWorkload
from mesh.clock import Clock

EXIT_PROBLEM = 1
_DEATH_LOAD = 1.3
"""Factor by which the load of the last run is longer, so that clients see the gateway's return too."""


class Demo:
    """Runs the scenario; all results are in `story`, however the demo ended."""

    def __init__(self, scenario: DemoScenario, folder: Path, console: Console) -> None:
        self.story = DemoStory(scenario)
        self._scenario = scenario
        self._folder = folder
        self._console = console

    async def compare(self) -> None:
        """Run the same load with and without forwarding, each time on freshly started regions, and then the
        failover."""
        print_intro(self._console, self._scenario, read_round_trips(ROUND_TRIPS_FILE))
        for name, overflow in ((MESH_RUN, OverflowMode.ON), (ALONE_RUN, OverflowMode.OFF)):
            async with asyncio.TaskGroup() as tasks, self._regions(name, overflow, tasks) as mesh:
                await self._load(name, mesh, self._scenario.load_s, tasks, keep=self.story.results.append)
        if has_addresses_of_its_own():
            async with asyncio.TaskGroup() as tasks, self._regions(DEATH_RUN, OverflowMode.ON, tasks) as mesh:
                await self._lose_one(mesh, tasks)

    async def _lose_one(self, mesh: Mesh, tasks: asyncio.TaskGroup) -> None:
        """Run a longer load while a gateway is killed halfway and returns."""
        load_s, seen = self._scenario.load_s, self.story
        region = RegionName(self._scenario.killed)
        pids = [each.child.pid for each in mesh.members.values() if each.region == region]
        killing = kill_and_return(mesh, region, Clock(), kill_s=load_s / 2, return_s=load_s * 0.75)
        dying = tasks.create_task(killing)

        def keep(run: RunResult) -> None:
            seen.death = FailoverReport(run, None)

        try:
            await self._load(DEATH_RUN, mesh, load_s * _DEATH_LOAD, tasks, keep=keep, dying=pids)
            with self._console.status(f"{DEATH_RUN}: until everything is home"):
                await dying
        finally:
            dying.cancel()
            if seen.death is not None and dying.done() and not dying.cancelled() and dying.exception() is None:
                seen.death = replace(seen.death, failover=dying.result())

    async def converse(self) -> None:
        """Ask real engines a few questions and print the region of each answer's engine."""
        async with asyncio.TaskGroup() as tasks, self._regions(MESH_RUN, OverflowMode.ON, tasks) as mesh:
            await converse(self._console, self._scenario, mesh)

    async def serve(self, kill: RegionName | None = None) -> None:
        """Stay up, without load, until interrupted. A gateway that dies is restarted."""
        async with (
            asyncio.TaskGroup() as tasks,
            self._regions(MESH_RUN, OverflowMode.ON, tasks, may_gateways_die=True) as mesh,
            aiohttp.ClientSession() as session,
        ):
            watch = None if mesh.name is None else Watch(mesh, session, Clock())
            served = {} if watch is None else await watch.replicas_of(mesh.members.values())
            keeper = GatewayRestarter(served, watch, Clock(), self._say)
            print_serving(self._console, self._scenario, mesh)
            async with asyncio.TaskGroup() as keepers:  # a group of its own, which ends before the gateways are stopped
                for member in mesh.members.values():
                    keepers.create_task(keeper.keep(member))
                if kill is not None:
                    self._say(f"kill -9 of the gateway of {kill}:")
                    await mesh.first_of(kill).child.kill()

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> int:
        """Print the story, and keep the logs only if there were problems; returns the exit code."""
        print_story(self._console, self.story)
        if self.story.problems():
            self._console.print(Text(f"Logs and region files: {self._folder}"), soft_wrap=True)
            return EXIT_PROBLEM
        shutil.rmtree(self._folder)
        return 0

    @asynccontextmanager
    async def _regions(
        self, name: str, overflow: OverflowMode, tasks: asyncio.TaskGroup, *, may_gateways_die: bool = False
    ) -> AsyncIterator[Mesh]:
        folder = self._folder / name
        folder.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            with self._console.status(f"{name}: starting engines and gateways"):
                running = running_mesh(
                    self._scenario,
                    overflow,
                    folder,
                    tasks,
                    may_gateways_die=may_gateways_die,
                    further_gateways=int(name == DEATH_RUN or may_gateways_die),  # compared runs name the nearest alone
                )
                mesh = await stack.enter_async_context(running)
            self._console.print(Text(f"{name}: look at it while it runs, at {page_of(mesh)}"), soft_wrap=True)
            yield mesh

    async def _load(
        self,
        name: str,
        mesh: Mesh,
        load_s: float,
        tasks: asyncio.TaskGroup,
        *,
        keep: Callable[[RunResult], None],
        dying: Collection[int] = (),
    ) -> None:
        """Send the load; measurements are kept even if it is interrupted. Processes of `dying` are left out of the CPU
        use."""
        runner = LiveRunner(self._plan(mesh, load_s), clock=Clock())
        cpu = CpuSampler((os.getpid(), *(pid for pid in mesh.pids if pid not in dying)))
        background = [tasks.create_task(cpu.run()), tasks.create_task(Screen(self._console, name, runner, cpu).run())]
        is_partial = True
        try:
            await runner.run()
            is_partial = False
        finally:
            for task in background:
                task.cancel()
            result = RunResult(
                name=name,
                regions=tuple(region.name for region in self._scenario.regions),
                load_s=runner.load_s,
                records=tuple(runner.records),
                prefix_tokens={},
                machine=cpu.use(),
                is_partial=is_partial,
            )
            keep(replace(result, prefix_tokens=await read_prefix_tokens(mesh.engines)))

    def _plan(self, mesh: Mesh, load_s: float) -> LoadPlan:
        scenario = self._scenario
        workload = MultiTurnWorkload(scenario.workload, seed=scenario.seed)
        groups = tuple(_clients(region, mesh, workload) for region in scenario.regions)
        return LoadPlan(groups, EndpointDialect(scenario.model), load_s, scenario.drain_s)


def _clients(region: RegionScenario, mesh: Mesh, workload: MultiTurnWorkload) -> LiveClientGroup:
    """Clients of a region: they resolve the mesh's one name, or use their region's gateway where there is no name."""
    load = ClosedLoop(workload, region.clients)
    if mesh.name is None:
        return LiveClientGroup(region.name, (mesh.gateways[region.name],), load)
    resolver = NameResolver(mesh.name.servers, mesh.name.networks[region.name], Clock())
    return LiveClientGroup(region.name, (mesh.name.url,), load, resolver=resolver)


async def run_to_its_end(story: DemoStory, work: Coroutine[None, None, None]) -> None:
    """Run `work` until it is done, fails, or is ended by a signal; never raises for any of these."""
    story.is_interrupted = await ends_by_signal(_noting_failure(story, work))


async def _noting_failure(story: DemoStory, work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except* DemoFailure as failures:
        story.failure = "\n".join(str(failure) for failure in leaves(failures))


def page_of(mesh: Mesh) -> str:
    """URL of the status page: the controller's, which shows all gateways, or else the first gateway's."""
    return f"{mesh.controller_admin or next(iter(mesh.admins.values()))}/"


def print_serving(console: Console, scenario: DemoScenario, mesh: Mesh) -> None:
    """Print the addresses of all processes and commands for trying them. Lines are not wrapped, so that they can be
    pasted."""
    first = scenario.regions[0].name
    url = mesh.gateways[first]
    lines = [
        f"{name}: {url}  (metrics and state: {mesh.admins[name]}; process {mesh.first_of(name).child.pid})"
        for name, url in mesh.gateways.items()
    ]
    lines.append(f"controller: .venv/bin/nightside ctl status --admin {mesh.controller_admin}")
    lines.append(
        f"The whole mesh on one page: {page_of(mesh)}  (one gateway's own is at its address for metrics and state)"
    )
    parts = ["\n".join(lines)]
    if mesh.name is None:
        parts.append(NO_ADDRESSES)
    else:
        host, port = mesh.name.servers[0]
        parts += [
            f"The one name is {mesh.name.url}, and says for a client in {first}:",
            dig_snippet(host, port, ZONE, mesh.name.networks[first]),
        ]
    parts += [
        "Kill a gateway and see what follows; it is begun again after a while:",
        f"kill -9 {mesh.first_of(scenario.regions[-1].name).child.pid}",
        f"Stream an answer from {first}:",
        curl_snippet(url, scenario.model),
        "Or with the OpenAI SDK (pip install openai):",
        openai_snippet(url, scenario.model),
        "Ctrl-C stops it.",
    ]
    console.print(Text("\n\n".join(parts)), soft_wrap=True)


@click.command()
@click.option("--serve", is_flag=True, help="Start the regions, print how to call them, and stay up.")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    help="Set the seconds for which each of the two runs sends load.",
    default=28.0,
)
@click.option("--seed", type=int, default=1, show_default=True, help="Set the seed of the load.")
@click.option(
    "--kill",
    metavar="REGION",
    help="Kill the gateway of this region, in the last run or, with --serve, once all are up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON; progress goes to stderr.")
@click.option(
    "--disaggregated",
    is_flag=True,
    help="Run one region as a disaggregated pool of one prefill and three decode engines.",
)
@click.option(
    "--fleet", type=click.Choice(["small", "large"]), default="small", show_default=True,
    help="Run four engines of 12 slots in each region (small), or one of 48 (large).",
)  # fmt: skip
@click.option(
    "--llamacpp",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run real llama.cpp servers by this Python; `make demo ENGINE=llamacpp` installs one.",
)
@click.pass_context
def demo(
    context: click.Context,
    *,
    serve: bool,
    kill: str | None,
    seconds: float,
    seed: int,
    as_json: bool,
    disaggregated: bool,
    fleet: str,
    llamacpp: Path | None,
) -> None:
    """Run three regions on this machine and show the gain of forwarding.

    Exit codes: 0 it ran, 1 a problem was found and logs are kept, 2 the command was used wrongly, 130 it was
    interrupted (with --serve 0).
    """
    if disaggregated and llamacpp is not None:
        raise click.UsageError("--disaggregated is for emulated engines: llama.cpp hands nothing over")
    if fleet == "large" and (disaggregated or llamacpp is not None):
        raise click.UsageError("--fleet large is for emulated engines that each read and write")
    scenario = disaggregated_scenario() if disaggregated else large_scenario() if fleet == "large" else DemoScenario()
    scenario = replace(scenario, load_s=seconds, seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="nightside-demo-"))
    if llamacpp is not None:
        scenario = real_scenario(llamacpp.absolute())
    if kill is not None:
        scenario = with_killed(scenario, kill)
    if serve:
        status = serve_regions(scenario, folder=folder, kill=None if kill is None else RegionName(kill))
    elif llamacpp is not None:
        status = converse_once(scenario, folder=folder)
    else:
        status = compare_runs(scenario, folder=folder, as_json=as_json)
    context.exit(status)


def with_killed(scenario: DemoScenario, region: str) -> DemoScenario:
    """Scenario with this region's gateway as the one to kill. Raises UsageError for a region that the demo does not
    have."""
    names = [each.name for each in scenario.regions]
    if region not in names:
        raise click.UsageError(f"--kill: {region} is no region of the demo ({', '.join(names)})")
    return replace(scenario, killed=region)


def serve_regions(scenario: DemoScenario, *, folder: Path, kill: RegionName | None = None) -> int:
    """Keep the regions up until interrupted; returns the exit code."""
    show = Demo(scenario, folder, Console())
    asyncio.run(run_to_its_end(show.story, show.serve(kill)))
    return show.close()


def converse_once(scenario: DemoScenario, *, folder: Path) -> int:
    """Ask real engines a few questions and print their answers; returns the exit code."""
    show = Demo(scenario, folder, Console(highlight=False))
    asyncio.run(run_to_its_end(show.story, show.converse()))
    exit_code = show.close()
    return EXIT_INTERRUPTED if show.story.is_interrupted else exit_code


def compare_runs(scenario: DemoScenario, *, folder: Path, as_json: bool = False) -> int:
    """Run the load with and without forwarding, and print or return the comparison; returns the exit code."""
    show = Demo(scenario, folder, Console(stderr=as_json))
    asyncio.run(run_to_its_end(show.story, show.compare()))
    exit_code = show.close()
    if as_json:
        click.echo(json.dumps(story_document(show.story), indent=2))
    return EXIT_INTERRUPTED if show.story.is_interrupted else exit_code
