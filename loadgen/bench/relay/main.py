"""`nightside bench relay`: the cost of a gateway compared with other relays, on the same engines and requests.

It starts everything itself, on two cores of this machine, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import click
import uvloop
from rich.console import Console
from rich.table import Table

from loadgen.bench.relay import page, wire
from loadgen.bench.relay.client import WrongAnswer
from loadgen.bench.relay.envoy import ENVOY, ENVOY_TO_ENVOY
from loadgen.bench.relay.figures import DIRECT, RelayFigure, RelayReading, as_document, with_added
from loadgen.bench.relay.installed import RIVALS, unmeasured, version_of, why_missing
from loadgen.bench.relay.machine import describe_machine, is_core_compiled, usable_cores
from loadgen.bench.relay.measures import (
    MEASURES,
    OF_A_FRESH_RELAY,
    OF_ATTACHED,
    OF_LOADS,
    OF_PAIRS,
    OF_SETTINGS,
    OF_SIBLINGS,
    OF_SLOW,
    OF_THE_FIRST_ROUND,
    QUICK,
    TOKENS_PER_S,
    USERS,
    USERS_AT_SATURATION,
    WITHOUT_RELAY,
    Effort,
    MeasureName,
    RelayBench,
    Subject,
    ask_until_ready,
)
from loadgen.bench.relay.page import Aim, RelayStory
from loadgen.bench.relay.processes import BenchFailure, running, running_engines
from loadgen.bench.relay.published import PUBLISHED
from loadgen.bench.relay.relays import ATTACHED, FORWARD, IN_PAIRS, NIGHTSIDE, RELAYS, SET_OTHERWISE, SIBLINGS
from loadgen.bench.relay.rivals import LITELLM, PORTKEY, SGLANG_ROUTER
from loadgen.bench.relay.setting import ReadyRelay, Relay, RelaySetting
from loadgen.demo.members import state_at
from loadgen.demo.processes import log_tail
from loadgen.interrupts import leaves
from mesh.clock import Clock

_LEVEL = 1.03
"""Ratio that counts as equal cost, given the spread of rounds on one machine."""
AIMS = (
    Aim(RelayFigure.CPU_PER_REQUEST, 1.2, SGLANG_ROUTER.name),
    Aim(RelayFigure.CPU_PER_LONG_REQUEST, 1.3, SGLANG_ROUTER.name),
    Aim(RelayFigure.CPU_PER_CHUNK, 1.0, ENVOY.name),
    Aim(RelayFigure.REQUESTS_PER_S, 7_500, is_least=True),
    Aim(RelayFigure.CPU_PER_REQUEST, _LEVEL, NIGHTSIDE.name, ATTACHED.name),
    Aim(RelayFigure.CPU_PER_CHUNK, _LEVEL, NIGHTSIDE.name, ATTACHED.name),
    Aim(RelayFigure.CPU_PER_CHUNK, 1.2, ENVOY_TO_ENVOY.name, FORWARD.name),
    Aim(RelayFigure.CPU_PER_LARGE_BODY, 1.5, NIGHTSIDE.name, FORWARD.name),
    Aim(RelayFigure.REQUESTS_PER_S, 3_000, of=FORWARD.name, is_least=True),
    Aim(RelayFigure.ADDED_TTFT_P50, 0.4),
    Aim(RelayFigure.ADDED_TTFT_P99, 1.5),
    Aim(RelayFigure.MEMORY_PER_STREAM, 25),
    Aim(RelayFigure.LONG_PROMPTS_PER_CPU_S, 500, is_least=True),
    Aim(RelayFigure.SHORT_JOB_CORES, round(PUBLISHED[RelayFigure.SHORT_JOB_CORES].value / 3, 2)),
    Aim(RelayFigure.LONG_JOB_CORES, round(PUBLISHED[RelayFigure.LONG_JOB_CORES].value / 5, 2)),
)
_TAKES: Mapping[str, Container[MeasureName]] = {
    **{each.name: OF_SETTINGS for each in SET_OTHERWISE},
    ATTACHED.name: OF_ATTACHED,
    **{each.name: [name for name in MeasureName if name not in OF_LOADS] for each in (FORWARD, ENVOY_TO_ENVOY)},
    LITELLM.name: OF_SLOW,
    PORTKEY.name: [name for name in MeasureName if name not in OF_THE_FIRST_ROUND],
}
"""Measurements of a run of all of them, for relays that do not take part in each."""
ALL_RELAYS = (*RELAYS, SIBLINGS, *SET_OTHERWISE)
ENGINES = 8
_READY_S = 120.0
_ATTACHED_S = 20.0
_SETTLE_S = 1.0
_LOOK_S = 0.1
_LOAD_MAX = 0.5
_OPEN_FILES = 65_536
_NOTES = "relay_notes.md"


@dataclass(slots=True)
class RelayPlan:
    """Settings of one run of the bench."""

    effort: Effort
    measures: Sequence[MeasureName]
    relays: Sequence[Relay]
    rivals: Path
    relay_core: int
    load_core: int
    sibling_core: int
    seed: int


@dataclass(slots=True)
class RelayRun:
    """Runs the rounds; results are in `readings` and `faults`, however the run ended."""

    plan: RelayPlan
    folder: Path
    console: Console
    readings: list[RelayReading] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    """Load average of the machine over the minute before the run; other load here distorts the figures."""

    async def measure(self) -> None:
        """Measure every relay in every round, in a rotating order, each time freshly started. Raises BenchFailure."""
        os.sched_setaffinity(0, {self.plan.load_core})
        rng = random.Random(self.plan.seed)
        async with running_engines(ENGINES, self.plan.load_core, self.folder) as engines:
            gc.freeze()
            bench = RelayBench(self.plan.effort, engines, rng)
            for number in range(1, self.plan.effort.rounds + 1):
                await self._measure_engine(number, bench)
                for relay in _turned(self.plan.relays, number - 1):
                    if relay.name not in self.faults:
                        await self._measure_relay(number, relay, bench)

    async def _measure_engine(self, number: int, bench: RelayBench) -> None:
        direct = Subject(DIRECT, bench.engines[0])
        measures = [each for each in self.plan.measures if each in WITHOUT_RELAY]
        await self._measure_subject(number, direct, bench, measures)

    async def _measure_relay(self, number: int, relay: Relay, bench: RelayBench) -> None:
        is_all = len(self.plan.measures) == len(MeasureName)
        measures = [each for each in self.plan.measures if is_measured(each, relay, number, is_all=is_all)]
        afresh = [each for each in measures if each in OF_A_FRESH_RELAY]
        try:
            for part, those in (("", [each for each in measures if each not in afresh]), ("-afresh", afresh)):
                folder = self.folder / f"{number}-{relay.name.replace(' ', '-')}{part}"
                folder.mkdir()
                if those:
                    async with self._running(relay, bench, folder) as subject:
                        await self._measure_subject(number, subject, bench, those)
        except* (BenchFailure, WrongAnswer, OSError) as failures:
            why = "; ".join(dict.fromkeys(str(each) or "it took too long" for each in leaves(failures)))
            self.faults[relay.name] = why
            self.console.print(f"{relay.name}: {why}", markup=False)

    @asynccontextmanager
    async def _running(self, relay: Relay, bench: RelayBench, folder: Path) -> AsyncIterator[Subject]:
        """Start the relay and wait until it has answered a request. Raises BenchFailure with the end of its log."""
        plan = self.plan
        setting = RelaySetting(folder, bench.engines, plan.relay_core, plan.rivals, plan.sibling_core, bench.rng)
        ready = await asyncio.to_thread(relay.prepare, setting)
        async with AsyncExitStack() as stack:
            for command in ready.beside:
                await stack.enter_async_context(running(command, folder / f"{command.name}.log"))
            processes: dict[str, int] = {}
            for command in ready.commands:
                process = await stack.enter_async_context(running(command, folder / f"{command.name}.log"))
                processes[command.name] = process.pid
            subject = Subject(
                relay.name, ready.port, processes, ready.key, ready.headers, relay.likeness, relay.fewer_streams
            )
            try:
                await ask_until_ready(subject, bench, wait_max_s=_READY_S)
            except TimeoutError as error:
                raise BenchFailure(f"{error}\n{_log_tails(ready, folder)}") from error
            async with _attached(ready, folder):
                await asyncio.sleep(_SETTLE_S)
                yield subject

    async def _measure_subject(
        self, number: int, subject: Subject, bench: RelayBench, measures: Sequence[MeasureName]
    ) -> None:
        for name in measures:
            self.console.print(
                f"round {number} of {self.plan.effort.rounds}: {subject.name}: {name}", style="dim", highlight=False
            )
            for value in await MEASURES[name](bench, subject):
                self.readings.append(RelayReading(number, subject.name, value.figure, value.value, value.part))


def is_measured(measure: MeasureName, relay: Relay, round_number: int, *, is_all: bool) -> bool:
    """True if the relay takes part in a measurement. A run of all measurements leaves out those that would make it long
    and say little."""
    if relay is SIBLINGS:
        return measure in OF_SIBLINGS
    if measure in OF_PAIRS and relay not in IN_PAIRS:
        return False
    if not is_all:
        return True
    is_once = measure in OF_THE_FIRST_ROUND or relay in SET_OTHERWISE
    return measure in _TAKES.get(relay.name, MeasureName) and (round_number == 1 or not is_once)


def _turned(relays: Sequence[Relay], by: int) -> list[Relay]:
    """Relays rotated by `by`, so that none always follows the same one."""
    start = by % len(relays) if relays else 0
    return [*relays[start:], *relays[:start]]


@asynccontextmanager
async def _attached(ready: ReadyRelay, folder: Path) -> AsyncIterator[None]:
    """Wait until the gateway is attached to its controller and serves by its snapshot, and check afterwards that it
    still is. Does nothing for a relay without a controller. Raises BenchFailure."""
    if not ready.attached_at:
        yield
        return
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(_ATTACHED_S):
                while not _serves_by_a_snapshot(await state_at(session, ready.attached_at)):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise BenchFailure(f"no controller was attached\n{_log_tails(ready, folder)}") from error
        yield
        if not _serves_by_a_snapshot(await state_at(session, ready.attached_at)):
            raise BenchFailure(f"its controller was lost\n{_log_tails(ready, folder)}")


def _serves_by_a_snapshot(state: Mapping[str, Any] | None) -> bool:
    control = None if state is None else state["control"]
    return control is not None and bool(control["attached"] and control["term"])


def _log_tails(ready: ReadyRelay, folder: Path) -> str:
    return "\n".join(log_tail(folder / f"{each.name}.log") for each in (*ready.beside, *ready.commands))


def missing_relays(plan: RelayPlan) -> dict[str, str]:
    """Relays that are not installed, and the reasons."""
    missing = {
        relay.name: why_missing(relay, plan.rivals)
        for relay in plan.relays
        if relay.package and version_of(relay, plan.rivals) is None
    }
    return missing | unmeasured(RELAYS, plan.rivals)


def story_of(run: RelayRun, missing: Mapping[str, str], command: str, date: str) -> RelayStory:
    plan, effort = run.plan, run.plan.effort
    versions = {relay.name: version_of(relay, plan.rivals) for relay in plan.relays}
    return RelayStory(
        readings=with_added(run.readings),
        relays={
            relay.name: f"{versions[relay.name]}: {relay.what}" if versions[relay.name] else relay.what
            for relay in plan.relays
        },
        faults={**missing, **run.faults},
        machine=describe_machine(),
        conditions=[*_conditions(plan, effort), f"load average of the machine just before: {run.load_before:.2f}"],
        command=command,
        date=date,
        ours=NIGHTSIDE.name,
        aims=AIMS,
        siblings=SIBLINGS.name,
        set_otherwise=[each.name for each in SET_OTHERWISE],
        siblings_note=_siblings_note(plan),
    )


def _conditions(plan: RelayPlan, effort: Effort) -> list[str]:
    held = " to ".join(str(streams) for streams in effort.held)
    return [
        f"relays on core {plan.relay_core}; engines and client together on core {plan.load_core}",
        f"{effort.rounds} rounds; in each every relay is started anew, in an order that turns; seed {plan.seed}",
        f"{ENGINES} engines in one process, which answer at once; events of {len(wire.TOKEN_EVENT)} bytes, as vLLM"
        " sends them; every answer is checked for its length, its number of events and its end",
        "CPU is what the relay's processes with all their threads used, divided by what clients got meanwhile",
        f"requests: {USERS} users without pauses; saturation: {USERS_AT_SATURATION}",
        f"chunks: {effort.streams} streams of {TOKENS_PER_S} tokens/s that neither begin nor end meanwhile",
        f"first token: {effort.arrivals_per_s:g} streams/s at random times",
        f"memory: growth of the proportional set size from {held} open streams",
        "taken in the first round alone, as they differ little or take long: memory, CPU without requests, streams that"
        " are not read, bodies of 32 MB, and the gateway's other settings",
    ]


def _siblings_note(plan: RelayPlan) -> str:
    if plan.sibling_core != plan.load_core:
        return "Each sibling has a core of its own, and engines and client a third."
    return (
        "This machine has two cores, so the second sibling shares one with the engines and the client: requests/s shows"
        " what is left for it there, and falls short of twice as many by what those need. What two processes lose"
        " to each other shows in the requests per second of their CPU time, which should stay the same."
    )


def _show(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    head, *body = rows
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in body:
        table.add_row(*row)
    console.print(table)


def show(console: Console, story: RelayStory) -> None:
    """Print all tables and faults of the page, without the conditions."""
    _show(console, "Median (low–high)", page.table(story))
    _show(console, "Ratios", page.ratio_rows(story))
    _show(console, "Aims", page.aim_rows(story))
    _show(console, "By process", page.part_rows(story))
    _show(console, "Two processes on one host", page.sibling_rows(story))
    _show(console, "The same gateway, set otherwise", page.setting_rows(story))
    _show(console, "Loads that others publish", page.published_rows(story))
    for name, why in story.faults.items():
        console.print(f"not measured: {name}: {why}", markup=False)


def _cores() -> tuple[int, int, int]:
    """Cores for relays, for the load, and for a second sibling. Raises UsageError."""
    cores = usable_cores()
    if len(cores) < 2:
        raise click.UsageError("two cores are needed, one for the relay and one for engines and client")
    return cores[0], cores[1], cores[min(2, len(cores) - 1)]


def raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@click.command()
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([each.name for each in ALL_RELAYS]),
    help="Measure only this relay; repeatable.",
)
@click.option(
    "--measure",
    "measures",
    multiple=True,
    type=click.Choice([str(each) for each in MeasureName]),
    help="Take only this measurement; repeatable.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    help=f"Set the number of rounds: {Effort().rounds} by default, {QUICK.rounds} with --quick.",
)
@click.option("--quick", is_flag=True, help="Measure in short windows, for a first look.")
@click.option(
    "--rivals",
    type=click.Path(path_type=Path),
    default=RIVALS,
    show_default=True,
    help="Find the other relays in this environment.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Set the seed of prompts and arrivals.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON; progress goes to stderr.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file as well."
)
@click.pass_context
def relay(context: click.Context, /, *, as_json: bool, output: Path | None, **asked: Any) -> None:
    """Measure the cost of a gateway beside other relays, on the same engines and requests.

    The other relays come from an environment of their own, which `make relays` installs. It takes two cores, and
    nothing else should run on them meanwhile. What stands in relay_notes.md beside the page goes into it.
    """
    plan = _plan(**asked)
    console = Console(stderr=as_json)
    raise_open_files_limit()
    missing = missing_relays(plan)
    installed = [each for each in plan.relays if each.name not in missing]
    run = RelayRun(replace(plan, relays=installed), Path(tempfile.mkdtemp(prefix="nightside-relay-")), console)
    if run.load_before > _LOAD_MAX:
        console.print(f"something else runs here (load average {run.load_before:.1f}): these figures will be too high")
    try:
        uvloop.run(run.measure())
    except BenchFailure as failure:
        raise click.ClickException(str(failure)) from failure
    story = story_of(run, missing, _command_line(asked), Clock().wall_time()[:10])
    show(console, story)
    if as_json:
        click.echo(json.dumps(document_of(story), indent=2))
    if output is not None:
        write_page(output, story)
        console.print(f"written: {output}", markup=False)
    if run.faults:
        console.print(f"Logs and files: {run.folder}", markup=False, soft_wrap=True)
        context.exit(1)
    shutil.rmtree(run.folder)


def _plan(
    *, names: Sequence[str], measures: Sequence[str], rounds: int | None, quick: bool, rivals: Path, seed: int
) -> RelayPlan:
    effort = QUICK if quick else Effort()
    relay_core, load_core, sibling_core = _cores()
    return RelayPlan(
        effort=replace(effort, rounds=rounds or effort.rounds),
        measures=[each for each in MeasureName if not measures or each in measures],
        relays=[each for each in ALL_RELAYS if not names or each.name in names],
        rivals=rivals.absolute(),
        relay_core=relay_core,
        load_core=load_core,
        sibling_core=sibling_core,
        seed=seed,
    )


def _command_line(asked: Mapping[str, Any]) -> str:
    """Command line that repeats the run."""
    words = ["--quick"] if asked["quick"] else []
    words += [f"--only '{name}'" for name in asked["names"]] + [f"--measure {name}" for name in asked["measures"]]
    words += [f"--rounds {asked['rounds']}"] if asked["rounds"] else []
    if not is_core_compiled():
        return " ".join(["nightside bench relay", *words])
    return " ".join(["make bench-relay", *([f'ARGS="{" ".join(words)}"'] if words else [])])


def write_page(output: Path, story: RelayStory) -> None:
    """Write the page, including the notes from the file beside it."""
    notes = output.parent / _NOTES
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page.page_of(story, notes.read_text() if notes.exists() else ""))


def document_of(story: RelayStory) -> dict[str, object]:
    """Results as JSON: medians and spreads, every reading, and the machine."""
    return {
        "machine": story.machine,
        "relays": dict(story.relays),
        "not_measured": dict(story.faults),
        "figures": as_document(story.readings),
        "readings": [
            {"round": each.round_number, "relay": each.relay, "process": each.part, each.figure: each.value}
            for each in story.readings
        ],
    }
