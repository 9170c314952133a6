"""Reads what is kept of the runs of tools: how each ended, what it reports, and what the gateways counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.outside.counts import Allowance, Compared, RunCounts, compared, unexplained
from loadgen.studies.outside.readings import Reading, read_folder_of_aiperf
from loadgen.studies.outside.soak import KeptSoak, SoakError, SoakKill, errors_in
from loadgen.studies.outside.tools import ENVIRONMENTS, RUNS, TOOLS, ToolRun, folder_of, shown_command

KEPT = "kept.json"
"""File of a `KeptRun` in the run's folder."""
VERSIONS = "versions.json"
"""File with the `OutsideSetup` of all runs, beneath the folder of all."""
SOAK = "soak"
"""Folder of a soak beneath that of all runs."""
SOAK_KEPT = "soak.json"
"""File of a `KeptSoak` there."""


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


@dataclass(frozen=True, slots=True)
class OutsideOutcome:
    runs: tuple[RunOutcome, ...]
    missing: tuple[ToolRun, ...]
    """Runs of which nothing is kept."""
    setup: OutsideSetup
    absent: Mapping[str, str]
    """Reason for each tool of which no run was started."""
    soak: tuple[KeptSoak, list[SoakError], RunCounts] | None = None
    """Soak that is kept, with AIPerf's errors and counts."""


def outcome_in(folder: Path) -> OutsideOutcome:
    """Outcome of all runs that are kept in the folder. Raises OSError where nothing is kept."""
    setup = setup_in(folder)
    absent = {tool.name: tool.why_absent(ENVIRONMENTS) for tool in TOOLS if tool.name not in setup.versions}
    missing = tuple(run for run in RUNS if not (folder_of(folder, run) / KEPT).exists())
    found = tuple(_outcome(run, folder_of(folder, run)) for run in RUNS if run not in missing)
    return OutsideOutcome(found, missing, setup, absent, kept_soak(folder))


def setup_in(folder: Path) -> OutsideSetup:
    """Machine and tools of the runs that are kept in the folder. Raises OSError where nothing is kept."""
    return OutsideSetup(**json.loads((folder / VERSIONS).read_text(encoding="utf-8")))


def _outcome(run: ToolRun, folder: Path) -> RunOutcome:
    told = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    kept = KeptRun(**{**told, "gateways": RunCounts(**told["gateways"]), "descriptors": tuple(told["descriptors"])})
    try:
        return RunOutcome(run, kept, run.read(folder), "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return RunOutcome(run, kept, Reading(), f"{type(error).__name__}: {error}")


def kept_soak(folder: Path) -> tuple[KeptSoak, list[SoakError], RunCounts] | None:
    """The soak that is kept in the folder of all runs, with AIPerf's errors and counts; None without one. Raises
    ValueError, KeyError, TypeError and OSError for other documents."""
    where = folder / SOAK
    if not (where / SOAK_KEPT).exists():
        return None
    told = json.loads((where / SOAK_KEPT).read_text(encoding="utf-8"))
    kills = [SoakKill(**each) for each in told["kills"]]
    processes = [ProcessSample(**each) for each in told["processes"]]
    soak = KeptSoak(**{**told, "kills": kills, "processes": processes, "rest": tuple(told["rest"])})
    with (where / "profile_export.jsonl").open(encoding="utf-8") as lines:
        errors = errors_in((json.loads(each) for each in lines), len(soak.addresses))
    return soak, errors, read_folder_of_aiperf(where).counts
