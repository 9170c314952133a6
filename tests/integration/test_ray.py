"""A sweep on a real Ray cluster of one machine: the same results as without."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from loadgen.demo.region_files import free_ports
from tests.support.scenarios import small_document

ROOT = Path(__file__).parents[2]

SCENARIO = small_document(duration="5s", clients=[{"region": "us", "workload": "chat", "clients": 12}])


def until_healthy(address: str) -> None:
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    for _ in range(60):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
    raise AssertionError(f"no cluster came up at {address}")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Address of a cluster of its own, in a folder with a short name, since its sockets lie there."""
    (port,) = free_ports(1, random.Random())
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
        command += ["--num-cpus=2", "--object-store-memory=100000000", "--include-dashboard=false"]
        command += ["--disable-usage-stats", f"--temp-dir={folder}"]
        with (Path(folder) / "head.log").open("wb") as log:
            head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until_healthy(f"127.0.0.1:{port}")
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
            kill_what_names(folder)


def kill_what_names(folder: str) -> None:
    """Kill processes that the head has started and left behind."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if folder.encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_sweep_on_a_cluster_gives_what_it_gives_here(cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    arguments = [str(path), "--sweep", "seed=1,2,3", "--json"]
    here, there = (run(*arguments, *more) for more in (("--jobs", "1"), ("--ray", cluster)))
    assert json.loads(there) == json.loads(here)


def run(*arguments: str) -> bytes:
    """Run the command in a process of its own, since Ray leaves threads and warnings behind."""
    done = subprocess.run([sys.executable, "-m", "nightside", "sim", *arguments], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
