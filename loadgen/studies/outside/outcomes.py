"""Reads what is kept of the runs of tools: how each ended, what it reports, and what the gateways counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.outside.counts import Allowance, Compared, RunCounts, compared, unexplained
from loadgen.studies.outside.readings import Reading, read_folder_of_aiperf
from loadgen.studies.outside.soak import KeptSoak, SoakError, SoakKill, errors_in
from loadgen.studies.outside.tools import AIPERF, ENVIRONMENTS, RUNS, TOOLS, ToolRun, folder_of, shown_command

KEPT = "kept.json"
"""File of a `KeptRun` in the run's folder."""
VERSIONS = "versions.json"
"""File with the `OutsideSetup` of all runs, beneath the folder of all."""
SOAK = "soak"
"""Folder of a soak beneath that of all runs."""
SOAK_KEPT = "soak.json"
"""File of a `KeptSoak` there."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors by which a report cannot be read."""


@dataclass(frozen=True, slots=True)
class OutsideSetup:
    """Machine and tools of the runs that are kept."""

    versions: Mapping[str, str]
    """Version of each installed tool."""
    machine: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class KeptRun:
    """End of one run, and the gateways' counts of it."""

    status: int | None
    """Exit status of the tool; None: it was ended at its deadline."""
    took_s: float
    load_average: float
    """Load average of the machine over the minute before the run."""
    gateways: RunCounts
    descriptors: tuple[int, int]
    """Open file descriptors of all gateways before and afterwards."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One run of a tool beside the gateways' counts."""

    run: ToolRun
    kept: KeptRun
    reading: Reading
    unread: str
    """Reason why the report could not be read; empty if it was."""

    @property
    def name(self) -> str:
        return self.run.title

    @property
    def command(self) -> str:
        return shown_command(self.run.tool, self.run.arguments)

    @property
    def compared(self) -> list[Compared]:
        return compared(self.reading.counts, self.kept.gateways)

    @property
    def allowed(self) -> Mapping[str, Allowance]:
        return self.run.allows(self.reading, self.kept.gateways)

    @property
    def unexplained(self) -> list[Compared]:
        return unexplained(self.compared, self.allowed)

    @property
    def explained(self) -> dict[str, str]:
        """Known reason for each count that differs and has one."""
        named = {each.name for each in self.compared if not each.is_equal} - {each.name for each in self.unexplained}
        return {name: each.why for name, each in self.allowed.items() if name in named}


class SoakOutcome(NamedTuple):
    """One soak, with AIPerf's errors and counts."""

    soak: KeptSoak
    errors: list[SoakError]
    counts: RunCounts
    unread: str = ""
    """Reason why AIPerf's report could not be read; empty if it was."""


@dataclass(frozen=True, slots=True)
class OutsideOutcome:
    runs: tuple[RunOutcome, ...]
    missing: tuple[ToolRun, ...]
    """Runs of which nothing is kept."""
    setup: OutsideSetup
    absent: Mapping[str, str]
    """Reason for each tool of which no run was started."""
    soak: SoakOutcome | None = None
    """Soak that is kept."""


def outcome_in(folder: Path) -> OutsideOutcome:
    """Outcome of all runs that are kept in the folder. Raises OSError where nothing is kept."""
    soak = kept_soak(folder)
    try:
        setup = setup_in(folder)
    except FileNotFoundError:
        if soak is None:
            raise
        setup = OutsideSetup({AIPERF.name: soak.soak.version}, soak.soak.machine)
    absent = {tool.name: tool.why_absent(ENVIRONMENTS) for tool in TOOLS if tool.name not in setup.versions}
    missing = missing_runs(folder)
    found = tuple(_outcome(run, folder_of(folder, run)) for run in RUNS if run not in missing)
    return OutsideOutcome(found, missing, setup, absent, soak)


def missing_runs(folder: Path) -> tuple[ToolRun, ...]:
    """Runs of which nothing is kept in the folder."""
    return tuple(run for run in RUNS if not (folder_of(folder, run) / KEPT).exists())


def setup_in(folder: Path) -> OutsideSetup:
    """Machine and tools of the runs that are kept in the folder. Raises OSError where nothing is kept."""
    return OutsideSetup(**json.loads((folder / VERSIONS).read_text(encoding="utf-8")))


def _outcome(run: ToolRun, folder: Path) -> RunOutcome:
    told = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    kept = KeptRun(**{**told, "gateways": RunCounts(**told["gateways"]), "descriptors": tuple(told["descriptors"])})
    try:
        return RunOutcome(run, kept, run.read(folder), "")
    except _UNREADABLE as error:
        return RunOutcome(run, kept, Reading(), _reason(error))


def kept_soak(folder: Path) -> SoakOutcome | None:
    """The soak that is kept in the folder of all runs; None without one."""
    where = folder / SOAK
    if not (where / SOAK_KEPT).exists():
        return None
    told = json.loads((where / SOAK_KEPT).read_text(encoding="utf-8"))
    kills = [SoakKill(**each) for each in told["kills"]]
    processes = [ProcessSample(**each) for each in told["processes"]]
    soak = KeptSoak(**{**told, "kills": kills, "processes": processes, "rest": tuple(told["rest"])})
    try:
        with (where / "profile_export.jsonl").open(encoding="utf-8") as lines:
            errors = errors_in((json.loads(each) for each in lines), len(soak.addresses))
        return SoakOutcome(soak, errors, read_folder_of_aiperf(where).counts)
    except _UNREADABLE as error:
        return SoakOutcome(soak, [], RunCounts(), _reason(error))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
