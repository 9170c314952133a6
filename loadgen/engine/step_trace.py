"""Diagnostic trace of a group's steps, one file per rank: when each step began and ended, how many requests it ran and
how many KV tokens it read. It serves to find a straggler and is not needed for serving (BalanceRoute, D.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from loadgen.engine.decode_group import Steps

HEADER = "step,begin_ns,end_ns,running,kv_tokens\n"
LINES_MAX = 10_000_000
"""Maximum lines of one file: later steps are left out, and the last line says so."""


class StepTrace:
    """Writer of the trace: pass `add` as `on_steps`, and close it in the end."""

    def __init__(self, folder: Path, ranks: int, *, name: str = "steps", lines_max: int = LINES_MAX) -> None:
        """Open `{name}-rank{r}.csv` for writing, overwriting existing files. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = [folder / f"{name}-rank{rank}.csv" for rank in range(ranks)]
        self._lines_max = lines_max
        self._lines = 0
        self._files: list[IO[str]] = []
        for path in self.paths:
            file = path.open("w", encoding="utf-8")
            self._files.append(file)
            file.write(HEADER)

    def add(self, told: Steps) -> None:
        """Write a stretch step by step."""
        steps = min(told.steps, self._lines_max - self._lines)
        for rank, file in enumerate(self._files):
            file.writelines(_lines(told, rank, steps))
            if steps < told.steps and self._lines <= self._lines_max:
                file.write("# more steps than fit\n")
        self._lines += told.steps

    def close(self) -> None:
        for file in self._files:
            file.close()


def _lines(told: Steps, rank: int, steps: int) -> Iterator[str]:
    running, kv_tokens = told.running[rank], told.kv_tokens[rank]
    end_ns = told.begin_ns
    for step in range(steps):
        begin_ns, end_ns = end_ns, told.begin_ns + told.envelope.duration_ns(step + 1)
        yield f"{told.number + step},{begin_ns},{end_ns},{running},{kv_tokens + step * running}\n"
