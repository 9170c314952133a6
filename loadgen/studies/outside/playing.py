"""Starts a mesh of three regions, has each tool measure it, and keeps the reports beside the gateways' own counts.

It judges nothing, and sends no request to the gateways itself while a tool runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

import aiohttp
import yaml

from gateway.core.kernel.config import OverflowMode
from loadgen.demo.layout import url_at
from loadgen.demo.members import until_ready
from loadgen.demo.mesh import running_mesh
from loadgen.demo.processes import DemoFailure, running_child
from loadgen.demo.region_files import LOOPBACK, free_ports
from loadgen.demo.scenario import DemoScenario, real_scenario
from loadgen.interrupts import leaves
from loadgen.studies.outside.counts import DESCRIPTORS, OPEN, counts_in, missing_in, since, value_in
from loadgen.studies.outside.outcomes import KEPT, SOAK, SOAK_KEPT, VERSIONS, KeptRun, OutsideSetup, setup_in
from loadgen.studies.outside.readings import LOG
from loadgen.studies.outside.running import run_tool
from loadgen.studies.outside.tokenizer import write_tokenizer
from loadgen.studies.outside.tools import ENVIRONMENTS, REAL_ENGINES, RUNS, TOOLS, ToolRun, folder_of

_ENGINES = 2
"""Engines in each region."""
_ANSWER_S = 5.0
_QUIET_S = 30.0
_VERSION_S = 60.0
_POLL_S = 0.2
_ANSWER_TOKENS = 16
HUB = "hub"
"""Folder of the cache in which the tokenizer has a name."""
_TRACED = 60
"""Requests of the trace."""


def play_outside(
    folder: Path, tools: Collection[str], machine: Mapping[str, object], tell: Callable[[str], None]
) -> None:
    """Play the runs of these tools, of those that are installed, and keep what comes of them in the folder, where other
    tools' runs of the same machine stay. Raises DemoFailure where the mesh cannot be started or dies."""
    versions = empty_for(folder, tools, machine)
    runs = [run for run in RUNS if run.tool.name in tools]
    try:
        asyncio.run(_play(folder.absolute(), runs, OutsideSetup(versions, machine), tell))
    except* DemoFailure as failures:
        reasons = [str(each) for each in leaves(failures)]
    else:
        return
    raise DemoFailure("\n".join(reasons))


def empty_for(folder: Path, tools: Collection[str], machine: Mapping[str, object]) -> Mapping[str, str]:
    """Empty the folder but for a soak and runs of other tools on the same machine. Returns those tools' versions."""
    try:
        before = setup_in(folder)
    except (OSError, ValueError, TypeError):
        before = OutsideSetup({}, {})
    is_same = before.machine == machine
    staying = [folder_of(folder, run) for run in RUNS if is_same and run.tool.name not in tools]
    staying += [folder / SOAK] if is_soak_of(folder, machine) else []
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path not in staying:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {name: version for name, version in before.versions.items() if is_same and name not in tools}


def is_soak_of(folder: Path, machine: Mapping[str, object]) -> bool:
    """True if the folder of all runs has a soak of this machine."""
    try:
        told = json.loads((folder / SOAK / SOAK_KEPT).read_text(encoding="utf-8"))
        return bool(told["machine"] == machine)
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def _play(folder: Path, runs: Sequence[ToolRun], before: OutsideSetup, tell: Callable[[str], None]) -> None:
    chosen = {run.tool.name: run.tool for run in runs}.values()
    programs = {tool.name: program for tool in chosen if (program := tool.program(ENVIRONMENTS)) is not None}
    real = (REAL_ENGINES / "bin" / "python").absolute()
    async with asyncio.TaskGroup() as tasks:
        versions = {**before.versions, **await versions_of(folder, programs, tasks)}
        setup = OutsideSetup(versions, before.machine)
        (folder / VERSIONS).write_text(json.dumps(asdict(setup)), encoding="utf-8")
        for name, scenario in (("mesh", scenario_in(folder)), ("mesh-real", real_scenario(real))):
            is_real = scenario.llamacpp is not None
            started = [run for run in runs if run.is_real is is_real and run.tool.name in programs]
            if not started or (is_real and not real.exists()):
                continue
            mesh_folder = _made(folder / name)
            async with AsyncExitStack() as stack:
                mesh = await stack.enter_async_context(running_mesh(scenario, OverflowMode.ON, mesh_folder, tasks))
                places = {
                    **files_in(folder, scenario.model), "model": scenario.model,
                    **dict(zip(("us", "eu", "ap"), mesh.gateways.values(), strict=False)),
                    "engine": next(iter(mesh.engines.values()))[0],
                    "tls": await stack.enter_async_context(_with_tls(mesh_folder, tasks)),
                    "roots": mesh_folder / "certificates" / "roots.pem",
                }  # fmt: skip
                for run in started:
                    out = _made(folder_of(folder, run))
                    command = [str(programs[run.tool.name]), *run.command(**places, out=out)]
                    kept = await _keep(run, command, out, mesh.admins.values(), folder / HUB)
                    tell(f"{run.title}: {kept.took_s:.0f} s")


@asynccontextmanager
async def _with_tls(folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[str]:
    """Run a further gateway of the first region, by itself, with TLS for its clients; gives its address."""
    region = DemoScenario().regions[0].name
    http, admin = free_ports(2, random.Random())
    document = yaml.safe_load((folder / f"{region}.yaml").read_text(encoding="utf-8"))
    certificates = folder / "certificates" / f"gw-{region}.clients"
    tls = {"certificate": f"{certificates}.pem", "key": f"{certificates}.key"}
    kept = {key: document[key] for key in ("region", "jurisdiction", "policy", "replicas")}
    listen = {"http": f"{LOOPBACK}:{http}", "admin": f"{LOOPBACK}:{admin}", "tls": tls}
    file = folder / "tls.yaml"
    file.write_text(yaml.safe_dump({"gateway": "gw-tls", **kept, "listen": listen}), encoding="utf-8")
    command = ["nightside", "gateway", "run", str(file)]
    async with running_child("the gateway with TLS", command, folder / "gateway-tls.log", tasks) as child:
        await until_ready(child, [f"{url_at(admin)}/ready"])
        yield f"{LOOPBACK}:{http}"


def scenario_in(folder: Path) -> DemoScenario:
    """Scenario of the demo with fewer engines, and with batches, whose files are in the folder."""
    base = DemoScenario()
    regions = (
        replace(each, engines=_ENGINES, sections={"batches": {"folder": str(folder / f"batches-{each.name}")}})
        for each in base.regions
    )
    return replace(base, regions=tuple(regions))


async def versions_of(folder: Path, programs: Mapping[str, Path], tasks: asyncio.TaskGroup) -> dict[str, str]:
    versions = {}
    for tool in TOOLS:
        if tool.name in programs:
            place = _made(folder / f"version-{tool.name}")
            end = await run_tool([str(programs[tool.name]), *tool.shows_version], place, _VERSION_S, tasks)
            text = (place / LOG).read_text(encoding="utf-8", errors="replace")
            versions[tool.name] = tool.version_in(text, end.status)
    return versions


async def _keep(run: ToolRun, command: Sequence[str], out: Path, admins: Collection[str], hub: Path) -> KeptRun:
    """Start the tool, and keep in its folder how it ended and what the gateways counted meanwhile."""
    before, load_average = await quiet_pages(admins), os.getloadavg()[0]
    async with asyncio.TaskGroup() as tasks:
        end = await run_tool(command, out, run.deadline_s, tasks, hub)
    after = await quiet_pages(admins)
    descriptors = value_in(before, DESCRIPTORS), value_in(after, DESCRIPTORS)
    kept = KeptRun(end.status, end.took_s, load_average, since(counts_in(before), counts_in(after)), descriptors)
    (out / KEPT).write_text(json.dumps(asdict(kept)), encoding="utf-8")
    return kept


async def quiet_pages(admins: Collection[str], quiet_s: float = _QUIET_S) -> list[str]:
    """Metrics pages of all gateways, once no request is open at any. Raises DemoFailure where that takes longer than
    `quiet_s`, with the last reason, and for a page that lacks what is read."""
    reason = "no metrics page was read"
    try:
        async with asyncio.timeout(quiet_s), aiohttp.ClientSession() as session:
            while True:
                try:
                    pages = [await _page(session, f"{admin}/metrics") for admin in admins]
                    requests = value_in(pages, OPEN)
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    reason = f"a metrics page could not be read: {error!r}"
                else:
                    if not requests:
                        return pages
                    reason = f"{requests} requests are open"
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoFailure(f"the gateways are not quiet within {quiet_s:.0f} s: {reason}") from None


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, timeout=aiohttp.ClientTimeout(total=_ANSWER_S), raise_for_status=True) as response:
        page = await response.text()
    if missing := missing_in(page):
        raise DemoFailure(f"{url} lacks {', '.join(missing)}")
    return page


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def files_in(folder: Path, model: str) -> dict[str, Path]:
    """Files that tools are given, by the names of their places in commands."""
    messages = [{"role": "user", "content": "How are you?"}]
    names = {"body": "body.json", "trace": "trace.jsonl", "config": "schemathesis.toml"}
    files = {place: folder / name for place, name in names.items()}
    files["tokenizer"] = write_tokenizer(folder / HUB)
    body = {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS}
    files["body"].write_text(json.dumps(body), encoding="utf-8")
    files["trace"].write_text("".join(f"{json.dumps(each)}\n" for each in _trace()), encoding="utf-8")
    files["config"].write_text(f'[parameters]\n"body.model" = "{model}"\n', encoding="utf-8")
    return files


def _trace() -> Iterator[dict[str, object]]:
    """Requests in the format of Mooncake's traces, three or four in each second: of 1,600 tokens, in blocks of 512, of
    which all share the first, and a fifth, a fifteenth and none the next ones."""
    for number in range(_TRACED):
        blocks = [0, 1 + number % 5, 10 + number % 15, 100 + number]
        yield {"timestamp": 300 * number, "input_length": 1600, "output_length": 24, "hash_ids": blocks}
