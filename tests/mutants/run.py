"""Plants one defect at a time in the core and runs the check that must detect it: the simulator's chaos, or a test if
no simulated world reaches that code.

Exit code 1 if a mutant survives or could not be planted. A checker that has never failed is not yet a checker: here
each of them has to fail.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from tests.mutants.child import Fate
from tests.mutants.defects import MUTANTS

ROOT = Path(__file__).parents[2]
SEEDS = 400
CPU_S = 300
"""CPU seconds of one search: a busy machine makes it longer, and never stops it."""
_STUCK_S = 3600


class Unfit(Exception):
    """A mutant that could not be planted, or was never called."""


def hunt(name: str, seeds: int = SEEDS) -> Fate:
    """Run the search for a mutant in a process of its own. Raises Unfit."""
    command = [sys.executable, "-m", "tests.mutants.child", name, str(seeds), str(CPU_S)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_STUCK_S)
    except subprocess.TimeoutExpired as error:
        raise Unfit(f"{name} was stuck for {_STUCK_S} s") from error
    if done.returncode == -signal.SIGXCPU:
        raise Unfit(f"{name} was not caught within {CPU_S} s of CPU time")
    if done.returncode:
        raise Unfit(done.stderr)
    return Fate(**json.loads(done.stdout))


def _row(name: str) -> tuple[str, str, bool]:
    """Name of the check that caught the mutant, where, and True if it was caught."""
    try:
        fate = hunt(name)
    except Unfit as unfit:
        return str(unfit).splitlines()[-1], "–", False
    return fate.caught_by or "no check", fate.where or "–", bool(fate.caught_by)


def main() -> int:
    """Run every mutant in turn and print a table."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        rows = dict(zip(MUTANTS, pool.map(_row, MUTANTS), strict=True))
    columns = (Column(header, overflow="fold") for header in ("defect", "caught by", "at"))
    table = Table(*columns, title=f"{len(MUTANTS)} mutants, up to {SEEDS} seeds each")
    for name, (caught_by, where, _) in rows.items():
        table.add_row(MUTANTS[name].what, caught_by, where)
    Console().print(table)
    return int(not all(is_well for _, _, is_well in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
