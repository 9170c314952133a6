"""Kills the leading controller repeatedly, and measures how soon the standby has written to the store.

The controllers are processes on this machine; the given file names their store. It judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from controller.config import read_controller_file
from loadgen.demo.processes import DemoFailure
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_ENOUGH_S = 120.0
_READY = "ready"
_STANDING_BY = "standby"
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """One leader followed by another."""

    led_s: float
    """Time from the kill until the next controller reports that it leads."""
    written_s: float
    """Time from the kill until an order, repeated until a controller accepts it, is in the store."""


@dataclass(frozen=True, slots=True)
class Succession:
    """All leader changes on one store."""

    store: str
    lease_s: float
    renew_interval_s: float
    look_interval_s: float
    changes: tuple[LeaderChange, ...]


def play(file: Path, rounds: int, tell: Callable[[str], None]) -> Succession:
    """Play `rounds` leader changes. Raises DemoFailure, and ConfigError for a faulty file."""
    store = read_controller_file(file).sections.store
    with tempfile.TemporaryDirectory() as folder:
        changes = asyncio.run(_play(file, Path(folder), rounds, tell))
    return Succession(
        store.kind,
        store.lease_ns / _SECOND_NS,
        store.renew_interval_ns / _SECOND_NS,
        store.look_interval_ns / _SECOND_NS,
        tuple(changes),
    )


async def _play(file: Path, folder: Path, rounds: int, tell: Callable[[str], None]) -> list[LeaderChange]:
    files = [_copy(file, folder, name) for name in ("one", "two")]
    clock = Clock()
    running: list[Process] = []
    changes: list[LeaderChange] = []
    try:
        async with asyncio.timeout(_ENOUGH_S * (rounds + 1)):
            leader, _ = await _begun(files[0], running, _READY)
            for number in range(rounds):
                follower, admin = await _begun(files[(number + 1) % 2], running, _STANDING_BY)
                changes.append(await _change(leader, follower, admin, clock))
                tell(f"{number + 1} of {rounds}: led after {changes[-1].led_s:.2f} s")
                leader = follower
    except TimeoutError as error:
        raise DemoFailure(f"{file}: no controller followed in time") from error
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return changes


async def _change(leader: Process, follower: Process, admin: str, clock: Clock) -> LeaderChange:
    leader.send_signal(signal.SIGKILL)
    began_ns = clock.now_ns()
    times: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        led = tasks.create_task(_line_of(follower, _READY))
        written = tasks.create_task(_until_ordered(admin))
        led.add_done_callback(lambda _: times.append(clock.now_ns()))
        await written
        written_ns = clock.now_ns()
    return LeaderChange((times[0] - began_ns) / _SECOND_NS, (written_ns - began_ns) / _SECOND_NS)


async def _until_ordered(admin: str) -> None:
    """Send an order without any effect until a leader has written it to the store."""
    body = {"order": {"order": "parameters-set", "sections": {}}, "by": "nightside results"}
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.post(f"{admin}/admin/orders", json=body) as answer:
                    if answer.status == 200 and json.loads(await answer.read())["applied"]:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_ASK_AGAIN_S)
        async with session.post(f"{admin}/admin/orders", json={"order": {"order": "parameters-clear"}}) as answer:
            await answer.read()


def _copy(file: Path, folder: Path, name: str) -> Path:
    document = yaml.safe_load(file.read_text())
    document["controller"] = f"controller-{name}"
    document["listen"] = {"grpc": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    document["history"] = {"path": str(folder / f"{name}.history")}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def _begun(file: Path, running: list[Process], wanted: str) -> tuple[Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nightside", "controller", "run", str(file), stdout=PIPE, stderr=DEVNULL
    )
    running.append(process)
    return process, await _line_of(process, wanted)


async def _line_of(process: Process, wanted: str) -> str:
    """Admin URL in the log line of the wanted event."""
    assert process.stdout is not None, "it was asked for"
    while line := await process.stdout.readline():
        said = json.loads(line)
        if said["event"] == wanted:
            return str(said["admin"])
    raise DemoFailure(f"a controller ended with status {await process.wait()} before it said what was waited for")
