"""What tests on real engines have measured of answers that broke, as they wrote it down. It measures nothing itself."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Exactness(msgspec.Struct, frozen=True):
    """Of greedy answers that were broken at random tokens, and went on."""

    engine: str
    call: str
    how: str
    """As a text, or as token ids."""
    breaks: int
    equal: int
    """To the unbroken one, to the last character."""
    reread: int
    """Of the others: the text up to the break is read as other tokens than those that were generated."""


class Killed(msgspec.Struct, frozen=True):
    """A real engine under load, killed with SIGKILL."""

    engine: str
    streams: int
    """Of all clients, until they were through."""
    held: int
    """At the engine when it was killed."""
    whole: int
    broken: int
    went_on: int
    pause_s: list[float]
    """Of each stream that went on, the longest time between two pieces."""
    first_token_s: list[float]
    """Of each stream."""


class Measured(msgspec.Struct):
    exactness: dict[str, Exactness] = {}
    killed: dict[str, Killed] = {}


def read_measured(path: Path) -> Measured:
    """Nothing where there is no such file. Raises msgspec.DecodeError for one that is none of ours."""
    return msgspec.json.decode(path.read_bytes(), type=Measured) if path.exists() else Measured()


def write_measured(path: Path, *, exactness: Exactness | None = None, killed: Killed | None = None) -> None:
    """Beside what was measured of others; in place of what was measured of the same before."""
    measured = read_measured(path)
    if exactness is not None:
        measured.exactness[f"{exactness.engine} {exactness.call} {exactness.how}"] = exactness
    if killed is not None:
        measured.killed[killed.engine] = killed
    path.write_bytes(msgspec.json.format(msgspec.json.encode(measured, order="deterministic"), indent=2) + b"\n")
