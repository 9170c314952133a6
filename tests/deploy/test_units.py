"""systemd's units: systemd itself reads them, and their command lines are started as they stand."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway.config.sections import LimitsConfig
from tests.deploy.units import ROOT, UNITS, seconds, setting, settings
from tests.support.gateways import until
from tests.support.processes import Process

_EXPOSURE_MAX = 25
"""Highest exposure level of `systemd-analyze security`, in tenths: 0 is none at all, 100 a service as root."""


SERVERS = [unit for unit in UNITS if "watch" not in unit.name]
"""Units of programs that listen and reload."""


def test_there_is_a_unit_for_each_program() -> None:
    assert [each.name for each in UNITS] == [
        "nightside-controller.service",
        "nightside-gateway.service",
        "nightside-gateway@.service",
        "nightside-host-watch.service",
    ]


def test_the_two_units_of_a_gateway_differ_in_taking_over_alone() -> None:
    plain, taking_turns = (settings(each) for each in UNITS if "gateway" in each.name)
    differing = {key for key in plain.keys() | taking_turns.keys() if plain[key] != taking_turns[key]}
    assert differing == {"Description", "ExecStart", "Restart"}
    assert taking_turns["ExecStart"] == [f"{plain['ExecStart'][0]} --take-over"]
    assert taking_turns["Restart"] == ["on-failure"], "who has handed over ends with 0, and stays away"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_the_unit_and_finds_little_that_it_could_do_harm_with(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name.replace("@.", "@a.")
    here.write_text(unit.read_text().replace("/opt/nightside/bin/nightside", "/bin/true"))
    understood = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert (understood.returncode, understood.stderr) == (0, "")
    exposed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={_EXPOSURE_MAX}", unit],
        capture_output=True,
        text=True,
    )
    assert exposed.returncode == 0, exposed.stdout


def test_a_key_that_is_misspelt_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.service"
    broken.write_text("[Service]\nExecStart=/bin/true\nTimeoutStopSecs=630s\n")
    understood = subprocess.run(["systemd-analyze", "verify", broken], capture_output=True, text=True)
    assert "TimeoutStopSecs" in understood.stderr


def test_the_user_can_be_made(tmp_path: Path) -> None:
    rules = ROOT / "deploy/systemd/nightside.sysusers.conf"
    (tmp_path / "etc").mkdir()
    done = subprocess.run(["systemd-sysusers", f"--root={tmp_path}", rules.resolve()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nightside:" in (tmp_path / "etc/passwd").read_text()
    assert {user for unit in UNITS for user in settings(unit)["User"]} == {"nightside"}


def test_a_gateway_has_as_long_as_its_longest_request_may_take() -> None:
    """Terraform's machines and docs/how_to/operations.md set limits.drain to the value of limits.request_deadline."""
    for unit in (each for each in UNITS if "gateway" in each.name):
        assert seconds(setting(unit, "TimeoutStopSec")) >= LimitsConfig().request_deadline_ns / 1e9 + 30


class Machine:
    """Machine whose unit paths lie in the test's folder."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.state = folder / "etc", folder / "state"
        self.etc.mkdir()
        self.state.mkdir()
        self._program = folder / "nightside"
        self._program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nightside "$@"\n')
        self._program.chmod(0o755)

    def here(self, text: str) -> str:
        places = {"/opt/nightside/bin/nightside": self._program, "/etc/nightside": self.etc}
        for there, here in places.items():
            text = text.replace(there, str(here))
        return text

    async def start(self, unit: Path) -> Process:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.here(setting(unit, "ExecStart"))),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), **_environment(unit)},
        )
        return Process(process)

    def reload(self, unit: Path, process: Process) -> None:
        command = setting(unit, "ExecReload").replace("$MAINPID", str(process.process.pid))
        subprocess.run(shlex.split(command), check=True)


def _environment(unit: Path) -> Mapping[str, str]:
    return dict(each.split("=", 1) for each in settings(unit)["Environment"])


@pytest.mark.parametrize("unit", SERVERS, ids=lambda unit: unit.stem)
async def test_it_starts_reloads_and_stops_as_the_unit_says(
    unit: Path, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    machine = Machine(tmp_path)
    admin = f"127.0.0.1:{unused_tcp_port_factory()}"
    listen = {"admin": admin, **({"http": "127.0.0.1:0", "peers": "127.0.0.1:0"} if "gateway" in unit.name else {})}
    if "controller" in unit.name:
        listen["grpc"] = "127.0.0.1:0"
    named = {"gateway": "us-1", "region": "us-east-1", "jurisdiction": "US", "state": {"folder": str(machine.state)}}
    controller = {"controller": "controller-1", "regions": {}, "store": {"path": str(machine.state / "controller.db")}}
    document = {**(named if "gateway" in unit.name else controller), "listen": listen}
    file = machine.etc / ("region.yaml" if "gateway" in unit.name else "controller.yaml")
    file.write_text(yaml.safe_dump(document))

    running = await machine.start(unit)
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        tasks.create_task(running.read_log())
        assert running.process.stdout is not None
        assert b'"ready"' in await running.process.stdout.readline()
        async with session.get(f"http://{admin}/ready") as answer:
            assert answer.status == 200
        file.write_text(yaml.safe_dump({**document, "colour": "red"}))
        machine.reload(unit, running)
        await until(lambda: any("colour" in str(line) for line in running.log_lines))
        running.signal(signal.SIGTERM)  # KillMode=mixed: SIGTERM goes to the program alone
        assert await running.process.wait() == 0
    assert setting(unit, "KillMode") == "mixed"
    assert shutil.which("systemd-analyze")
