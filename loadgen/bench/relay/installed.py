"""Other projects' relays as `.ci/setup-relays` installs them: a folder for each, its version, and reasons of absence.

It installs nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from loadgen.bench.relay.processes import BenchFailure
from loadgen.bench.relay.setting import Relay, RelaySetting

_UNAVAILABLE = "unavailable-"
RIVALS = Path(".venv-relay")
"""Folder into which `make relays` installs the other relays."""


def folder_of(package: str, rivals: Path) -> Path:
    """Folder of a package's own environment."""
    return rivals / package.removeprefix("@").replace("/", "-")


def program_of(setting: RelaySetting, package: str, program: str) -> str:
    """Path of a program of the package. Raises BenchFailure where it is not installed."""
    path = folder_of(package, setting.rivals) / "bin" / program
    if not path.exists():
        raise BenchFailure(f"{program} is not in {path.parents[1]}: `make relays` installs it")
    return str(path)


def version_of(relay: Relay, rivals: Path) -> str | None:
    """Installed version of another project's relay; None if it is not installed."""
    if relay.package is None:
        return None
    note = folder_of(relay.package, rivals) / "version"
    return note.read_text().strip() if note.exists() else None


def why_missing(relay: Relay, rivals: Path) -> str:
    """Reason noted by the installation, or a hint that the relay is not installed."""
    assert relay.package is not None
    folder = folder_of(relay.package, rivals)
    note = rivals / f"{_UNAVAILABLE}{folder.name}"
    reason = note.read_text().strip() if note.exists() else f"it is not in {rivals}: `make relays` installs it"
    return f"not available: {reason}"


def unmeasured(relays: Iterable[Relay], rivals: Path) -> dict[str, str]:
    """Packages that the installation tried and the bench has no relay for, with the reasons why they are not there."""
    known = {folder_of(each.package, rivals).name for each in relays if each.package}
    notes = {note.name.removeprefix(_UNAVAILABLE): note for note in sorted(rivals.glob(f"{_UNAVAILABLE}*"))}
    return {name: f"not available: {note.read_text().strip()}" for name, note in notes.items() if name not in known}
