"""Gateways as processes (`nightside gateway run`): their region files, their start, and their logs and metrics."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.vocabulary import Place
from loadgen.engine.server import EngineServer
from tests.fakes.engine import FakeEngine
from tests.support.core import EU, MODEL, US
from tests.support.gateways import region_document, until
from tests.support.programs import AnyProcess, end, program, started

QUICK_PROBES = {"interval": "20ms"}
QUICK_PEERS = {"ping_interval": "50ms", "reconnect_min": "10ms", "reconnect_max": "100ms", "silence_max": "1s"}
QUICK_OBSERVATION = {"publish_interval": "20ms", "keep_alive": "150ms"}


def region_file(folder: Path, gateway_id: str, place: Place, engine: FakeEngine | EngineServer, **more: object) -> Path:
    path = folder / f"{gateway_id}.yaml"
    replicas = [{"id": f"{gateway_id}-r0", "url": engine.url, "models": [MODEL]}]
    layered = {"policy": "prefix"}  # one pending request is enough to make an engine busy
    own = {"logging": {"level": "debug"}, "placement": layered, "replicas": replicas, **more}
    path.write_text(yaml.safe_dump(region_document(folder, gateway_id, place, **own)))
    return path


def two_regions(
    folder: Path, ports: Callable[[], int], us_engine: FakeEngine, eu_engine: FakeEngine, **more: object
) -> tuple[Path, Path]:
    """Region files of US and EU, each other's peers, with short intervals and with addresses that a restart keeps."""
    places = {"us-1": US, "eu-1": EU}
    peers_at = {name: f"127.0.0.1:{ports()}" for name in places}
    files = []
    for name, engine in (("us-1", us_engine), ("eu-1", eu_engine)):
        others = [
            {"gateway": other, "region": place.region, "jurisdiction": place.jurisdiction, "address": peers_at[other]}
            for other, place in places.items()
            if other != name
        ]
        listen = {"http": f"127.0.0.1:{ports()}", "admin": f"127.0.0.1:{ports()}", "peers": peers_at[name]}
        quick = {"probes": QUICK_PROBES, "peering": QUICK_PEERS, "observation": QUICK_OBSERVATION}
        settings = {**quick, "logging": {"level": "info"}, **more}
        files.append(region_file(folder, name, places[name], engine, listen=listen, peers=others, **settings))
    return files[0], files[1]


@dataclass
class Process:
    process: AnyProcess
    log_lines: list[dict[str, Any]] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)
    """Lines of standard error that are not part of the log; `gateway_process` asserts at its end that there are
    none."""
    http_url: str = ""
    admin_url: str = ""

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            keep_line(line, self.log_lines, self.other_lines)

    def has_logged(self, event: str, **fields: object) -> bool:
        def is_meant(line: dict[str, object]) -> bool:
            return line["event"] == event and all(line.get(name) == value for name, value in fields.items())

        return any(is_meant(line) for line in self.log_lines)

    async def until_logged(self, event: str, **fields: object) -> None:
        await until(lambda: self.has_logged(event, **fields))

    async def metric(self, session: aiohttp.ClientSession, name: str, **labels: str) -> float:
        """Sum over every series with these labels; 0 if there is none."""
        async with session.get(f"{self.admin_url}/metrics") as page:
            families = text_string_to_metric_families(await page.text())
            return sum(
                sample.value
                for family in families
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )

    async def until_metric(
        self, session: aiohttp.ClientSession, holds: Callable[[float], bool], name: str, **labels: str
    ) -> None:
        while not holds(await self.metric(session, name, **labels)):  # noqa: ASYNC110 - a page to poll
            await asyncio.sleep(0.02)

    async def until_at_rest(self, session: aiohttp.ClientSession) -> None:
        for name in ("requests_open", "attempts_in_flight", "queue_length"):
            await self.until_metric(session, lambda value: value == 0, f"nightside_{name}")

    def limit(self, kind: int, soft: int) -> None:
        """Limit a resource at once; a soft limit below the hard one can be lifted again."""
        _, hard = resource.prlimit(self.process.pid, kind)
        resource.prlimit(self.process.pid, kind, (hard if soft == resource.RLIM_INFINITY else soft, hard))

    def open_files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def cpu_ticks(self) -> int:
        """User and system time, in clock ticks of a hundredth of a second."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


def keep_line(line: bytes, of_the_log: list[dict[str, Any]], others: list[str]) -> None:
    """Append the line to the log's lines, or to the others if it is not JSON."""
    try:
        of_the_log.append(json.loads(line))
    except ValueError:
        others.append(line.decode(errors="replace"))


@asynccontextmanager
async def gateway_process(
    file: Path, *options: str, started_by: Sequence[str] = (), run: Sequence[str] = (), fresh: bool = False
) -> AsyncIterator[Process]:
    """Run a gateway until it reports ready. It is killed at the end if it has not exited by itself.

    `started_by` and `fresh` are those of `started`; `run` replaces the command.
    """
    starting = program(*run) if run else started("gateway", "run", file, *options, started_by=started_by, fresh=fresh)
    async with starting as process, asyncio.TaskGroup() as tasks:
        running = Process(process)
        tasks.create_task(running.read_log())
        try:
            assert process.stdout is not None
            said = json.loads(await process.stdout.readline())
            assert said["event"] == "ready", "the first line says where the gateway is reached"
            running.http_url, running.admin_url = said["clients"], said["admin"]
            yield running
        finally:
            await end(process)
    assert not running.other_lines, f"no JSON: {running.other_lines}"
