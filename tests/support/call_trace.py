"""Counts every Python call of ours that one streamed request makes in an uncompiled gateway, by file and by part.

`python -m tests.support.call_trace [local|forwarded] [--json]` prints the counts. Time is no good measure of a change
on a shared machine; the number of calls is the same each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec.structs import replace

from gateway.config.sections import GatewayConfig
from gateway.core.kernel.config import PlacementConfig, PushingConfig
from tests.support.core import EU, LAYERED, US
from tests.support.gateways import knowing, until, usable_peers
from tests.support.regions import Mesh, Region

ROOT = f"{Path(__file__).parents[2]}/"
OURS = ("gateway/", "mesh/", "controller/", "protos/")
"""Every root of ours that a gateway runs, so that code that has moved still counts."""
PARTS = {
    "core": ("gateway/core/",),
    "request": ("gateway/request/", "gateway/features/resume/"),
    "edges": ("gateway/door/", "gateway/http1/", "gateway/engines/", "gateway/peers/"),
    "recorders": ("gateway/records/", "gateway/tracing/", "gateway/features/"),
}
"""Parts of a gateway by folder; the rest is `shared`."""
_WARM_UPS = 3
_IDLE_S = 0.3
_FLUSHED_S = 0.2
_HOUR_NS = 3_600_000_000_000
_PROMPT = "hello there, how are you doing today? " * 8


@dataclass
class Trace:
    """Calls of one request."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """File and qualified name of each call, in order."""
    objects: Counter[str] = field(default_factory=Counter)
    """Instances of our own classes whose `__init__` ran, by class."""

    def figures(self) -> dict[str, Any]:
        """Calls by part, files, changes of file, and objects."""
        files = [file for file, _ in self.calls]
        changes = sum(one != other for one, other in pairwise(files))
        return {
            "calls": len(self.calls),
            **{part: sum(_part_of(file) == part for file in files) for part in (*PARTS, "shared")},
            "files": len(set(files)),
            "changes_of_file": changes,
            "objects": self.objects.total(),
            "kinds_of_objects": len(self.objects),
        }


def _part_of(file: str) -> str:
    return next((part for part, folders in PARTS.items() if file.startswith(folders)), "shared")


class _Profiler:
    """Profile function of the loop's thread. Tasks that run while the gateway is idle are background and not counted;
    callbacks outside of tasks count, so probes and heartbeats have to be rare."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.background: set[asyncio.Task[Any]] = set()
        self.is_idle = True

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        is_init_of_value = code.co_filename == "<string>" and code.co_name == "__init__"
        file = code.co_filename.removeprefix(ROOT)
        if not file.startswith(OURS) and not is_init_of_value:
            return
        task = asyncio.current_task()
        if self.is_idle:
            if task is not None:
                self.background.add(task)
        elif task is None or task not in self.background:
            if code.co_name == "__init__":
                self._count_object(frame)
            if not is_init_of_value:
                self.trace.calls.append((file, code.co_qualname))

    def _count_object(self, frame: FrameType) -> None:
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith(("gateway.", "mesh.", "protos.")):
            self.trace.objects[f"{kind.__module__}.{kind.__qualname__}"] += 1


@contextmanager
def _profiled(profiler: _Profiler) -> Iterator[None]:
    sys.setprofile(profiler)
    try:
        yield
    finally:
        sys.setprofile(None)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str) -> None:
    document = {"model": model, "stream": True, "messages": [{"role": "user", "content": _PROMPT}]}
    body = json.dumps(document).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        async with asyncio.timeout(5):
            answer += await reader.read(65536)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]


async def traced(kind: str) -> Trace:
    """Trace of one request of a warm gateway. `kind`: local, or forwarded (both gateways are counted)."""
    folder = tempfile.TemporaryDirectory()
    mesh = Mesh(Path(folder.name), _free_port)
    us = await mesh.region("us-1", US)
    us.config = _quiet(us.config, PlacementConfig(), publishes=kind != "local")
    if kind == "local":
        await mesh.start(us)
    else:
        await _start_with_busy_us(mesh, us)
    reader, writer = await asyncio.open_connection("127.0.0.1", us.gateway.http_address.port)
    model = us.config.replicas[0].spec.models[0]
    for _ in range(_WARM_UPS):
        await _ask(reader, writer, model)
    profiler = _Profiler()
    with _profiled(profiler):
        await asyncio.sleep(_IDLE_S)
        profiler.is_idle = False
        await _ask(reader, writer, model)
        await asyncio.sleep(_FLUSHED_S)
    writer.close()
    await mesh.close()
    folder.cleanup()
    return profiler.trace


def _quiet(config: GatewayConfig, placement: PlacementConfig, *, publishes: bool = True) -> GatewayConfig:
    """A gateway that probes once, at its start, and believes the result; without `publishes` it sends one heartbeat."""
    observation = replace(config.core.observation, replica_stale_ns=3 * _HOUR_NS)
    if not publishes:
        observation = replace(observation, publish_interval_ns=_HOUR_NS, keep_alive_ns=_HOUR_NS)
    core = replace(config.core, placement=placement, observation=observation, pushing=PushingConfig())
    return replace(config, core=core, probes=replace(config.probes, interval_ns=_HOUR_NS))


async def _start_with_busy_us(mesh: Mesh, us: Region) -> None:
    """The engine of the first region has a full queue, so that what is asked there runs in the second."""
    eu = await mesh.region("eu-1", EU)
    us.engine.waiting = 1
    for region, other in ((us, eu), (eu, us)):
        region.config = knowing(_quiet(region.config, PlacementConfig(LAYERED)), other.config)
        await region.start()
        mesh.on_close(region.stop)
    for region in (us, eu):
        await until(lambda region=region: usable_peers(region.gateway) == 1)  # type: ignore[misc]
        await until(lambda region=region: next(iter(region.gateway.core.replicas)).healthy)  # type: ignore[misc]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    """Print the figures, the files and the functions called most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("local", "forwarded"), default="local")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    with Path(os.devnull).open("w", encoding="utf-8") as nothing, redirect_stdout(nothing):
        trace = asyncio.run(traced(options.kind))
    figures = trace.figures()
    if options.as_json:
        sys.stdout.write(json.dumps(figures | {"by_file": Counter(file for file, _ in trace.calls)}, indent=1) + "\n")
        return
    sys.stdout.writelines(f"{name:20} {count}\n" for name, count in figures.items())
    for title, counts in (
        ("files", Counter(file for file, _ in trace.calls)),
        ("functions", Counter(f"{file}:{name}" for file, name in trace.calls)),
        ("objects", trace.objects),
    ):
        sys.stdout.write(f"\n{title}\n")
        sys.stdout.writelines(f"{count:5} {name}\n" for name, count in counts.most_common(60))


if __name__ == "__main__":
    main()
