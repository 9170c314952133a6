"""Reads and writes measurements that tests on real engines made of broken answers. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Exactness(msgspec.Struct, frozen=True):
    """Comparison of greedy answers that were broken at random tokens, and resumed."""

    engine: str
    call: str
    how: str
    """Form in which the answer is resumed: as text, or as token ids."""
    breaks: int
    equal: int
    """Answers equal to the unbroken one, to the last character."""
    reread: int
    """Unequal answers whose text up to the break is tokenized differently from the generated tokens."""


class Killed(msgspec.Struct, frozen=True):
    """A real engine under load, killed with SIGKILL."""

    engine: str
    streams: int
    """Streams of all clients, until all were done."""
    held: int
    """Streams at the engine when it was killed."""
    whole: int
    broken: int
    went_on: int
    pause_s: list[float]
    """Longest time between two pieces of each resumed stream."""
    first_token_s: list[float]
    """Time to the first token of each stream."""


class EngineFigures(msgspec.Struct):
    exactness: dict[str, Exactness] = {}
    killed: dict[str, Killed] = {}


def read_measured(path: Path) -> EngineFigures:
    """Measurements in the file; empty if it does not exist. Raises msgspec.DecodeError for a file of another form."""
    return msgspec.json.decode(path.read_bytes(), type=EngineFigures) if path.exists() else EngineFigures()


def write_measured(path: Path, *, exactness: Exactness | None = None, killed: Killed | None = None) -> None:
    """Add a measurement to the file, replacing an earlier one of the same kind."""
    measured = read_measured(path)
    if exactness is not None:
        measured.exactness[f"{exactness.engine} {exactness.call} {exactness.how}"] = exactness
    if killed is not None:
        measured.killed[killed.engine] = killed
    path.write_bytes(msgspec.json.format(msgspec.json.encode(measured, order="deterministic"), indent=2) + b"\n")
