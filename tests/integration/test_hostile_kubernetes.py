"""A Kubernetes API that lies to a gateway's discovery, on a real socket.

The cases are data: `tests/hostile/kubernetes_answers.py`.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import Dialect, KubernetesApi, KubernetesKind, KubernetesReplicasConfig, ReplicaConfig
from gateway.core.vocabulary import GatewayId
from gateway.discovery import kubernetes, kubernetes_api
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.kubernetes_api import OBJECTS_MAX
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.engine import Tally
from tests.fakes.lying_kubernetes import Answers, LyingKubernetes
from tests.hostile.kubernetes_answers import HONEST, LIST_CASES, TRUTH, WATCH_CASES, ClusterCase, event, stream
from tests.support.background import in_background
from tests.support.core import MS, replica_spec

TEMPLATE = ReplicaConfig(replica_spec("stack"), "", Dialect.VLLM, "secret")
QUICK = DiscoveryConfig(interval_min_ns=5 * MS, interval_max_ns=20 * MS, replicas_max=4)
TOO_OLD = stream(event("ERROR", {"code": 410}))
ROUNDS = 5
"""More than `misses_max`."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_PAGE_S": 0.5, "_LIST_S": 1, "_WATCH_S": 0.2, "_SILENT_S": 0.5, "_PART_PAUSE_S": 0}.items():
        monkeypatch.setattr(kubernetes_api, name, value)
    monkeypatch.setattr(kubernetes, "_WATCH_PAUSE_S", 0.005)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("the-token")
    return file


@dataclass
class Known:
    source: KubernetesSource
    stream: io.StringIO
    sets: list[frozenset[str]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def report(self, replicas: tuple[ReplicaConfig, ...]) -> None:
        self.sets.append(frozenset(each.url for each in replicas))
        self.tally.add()

    async def until(self, engines: Iterable[str]) -> None:
        while urls(engines) not in self.sets:
            await self.tally.reaches(self.tally.count + 1)

    def logged(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def urls(engines: Iterable[str]) -> frozenset[str]:
    return frozenset(f"http://{each}" for each in engines)


@asynccontextmanager
async def lied_to(lists: Answers, watches: Answers, token: Path) -> AsyncIterator[tuple[LyingKubernetes, Known]]:
    log_stream = io.StringIO()
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), log_stream)
    async with LyingKubernetes(lists, watches).serving() as api:
        config = KubernetesReplicasConfig(
            TEMPLATE,
            KubernetesKind.ENDPOINT_SLICES,
            KubernetesApi(api.url, token),
            "engines",
            "app=vllm",
            "http",
            "http",
        )
        known = Known(KubernetesSource(config, QUICK, log), log_stream)
        async with in_background(known.source.run(known.report)):
            yield api, known


@asynccontextmanager
async def elsewhere() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Another server, and the requests that it gets."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


def check(case: ClusterCase, api: LyingKubernetes, known: Known, asked: list[bytes]) -> None:
    assert set(known.sets) <= {urls(HONEST), urls(case.known)}
    assert not asked, "only the API of the region file is asked, and only it sees the token"
    assert len(known.source._objects) <= OBJECTS_MAX
    for head in map(bytes.lower, api.heads):
        assert b"\r\naccept-encoding: identity\r\n" in head
        assert b"\r\ncookie:" not in head
    assert "the-token" not in known.stream.getvalue()
    for line in known.logged():
        assert all(str(each).isprintable() and len(str(each)) < 1000 for each in line.values()), line


@pytest.mark.parametrize("case", LIST_CASES, ids=lambda case: case.name)
async def test_a_list_that_lies(case: ClusterCase, token: Path) -> None:
    async with elsewhere() as (port, asked):
        lie = _to(case, port)

        def lists(before: int) -> bytes | Iterable[bytes] | None:
            return TRUTH if before == 0 or (case.once and before > 1) else lie

        async with lied_to(lists, lambda _: TOO_OLD, token) as (api, known):
            await known.until(case.known)
            await api.listed.reaches(1 + ROUNDS)
            check(case, api, known, asked)


@pytest.mark.parametrize("case", WATCH_CASES, ids=lambda case: case.name)
async def test_a_watch_that_lies(case: ClusterCase, token: Path) -> None:
    async with elsewhere() as (port, asked):
        lie = _to(case, port)
        async with lied_to(lambda _: TRUTH, lambda before: lie if before == 0 else None, token) as (
            api,
            known,
        ):
            await known.until(case.known)
            await api.watched.reaches(2)
            check(case, api, known, asked)


def _to(case: ClusterCase, port: int) -> bytes | Iterable[bytes] | None:
    return case.lie.replace(b"{elsewhere}", str(port).encode()) if isinstance(case.lie, bytes) else case.lie
