"""The shape of a relay in the bench: what it is given, what it starts, and how its answers are compared.

It starts no process of a relay; `relays` and `rivals` describe them, and the bench starts them.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.bench.relay.processes import BenchFailure, Command
from loadgen.bench.relay.wire import Likeness

HOST = "127.0.0.1"
TRUST_DOMAIN = "bench.example"
REGIONS = {"near": "us-east-1", "far": "us-west-2"}


@dataclass(frozen=True, slots=True)
class RelaySetting:
    """Inputs of a relay: the folder for its files, the engines, and the cores it may run on."""

    folder: Path
    engines: Sequence[int]
    core: int
    rivals: Path
    """Folder with the environments of other projects' relays."""
    second_core: int
    """Core of a second sibling, and of processes that a relay depends on."""
    rng: random.Random


@dataclass(frozen=True, slots=True)
class ReadyRelay:
    """A relay that can be started: its processes in order, the port for clients, and their API key."""

    commands: Sequence[Command]
    port: int
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers that the relay needs in each request."""
    beside: Sequence[Command] = ()
    """Processes that the relay depends on, such as a controller; started first, on another core, and not counted in its
    cost."""
    attached_at: str = ""
    """Admin address of a gateway that must stay attached to a controller during the measurements."""


@dataclass(frozen=True, slots=True)
class Relay:
    name: str
    what: str
    """Description of the settings, in words."""
    prepare: Callable[[RelaySetting], ReadyRelay]
    package: str | None = None
    """Package in a registry; None for Nightside's relays."""
    likeness: Likeness = Likeness.BYTES
    """Likeness of its answers to the engines'."""
    fewer_streams: int = 1
    """Divisor of the number of steady streams, for a relay that cannot keep up with all of them."""


def nightside(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nightside", *arguments]


def run_nightside(*arguments: str) -> str:
    """Run a Nightside command that prepares files. Raises BenchFailure."""
    done = subprocess.run(nightside(*arguments), capture_output=True, text=True, timeout=60)  # noqa: S603
    if done.returncode:
        raise BenchFailure(f"nightside {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
