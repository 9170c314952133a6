"""Recorder of the experts that answers use, for calibration: a line a request in a file with a limit.

It must never hold up a step for longer than the addition takes. A full disk ends the recording, not the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_expert_counts import logger
from vllm_expert_counts.counting import Scheduled
from vllm_expert_counts.rows import Rows, Total
from vllm_expert_counts.wire import Label, calibration_line


@dataclass(slots=True)
class _Record:
    label: Label
    prefill: NDArray[np.uint32]
    decode: NDArray[np.uint32]
    counted_to: int
    steps: int = 0


def file_of(file: Path, ranks: int, rank: int) -> Path:
    """Return a rank's own file: two ranks that write to one file may mix their lines."""
    return file if ranks == 1 else file.with_name(f"{file.stem}.{rank}{file.suffix}")


class Recorder:
    def __init__(self, rows: Rows, file: Path, lines_max: int, model: str) -> None:
        self._rows = rows
        self._file = file
        self._lines_left = lines_max
        self._model = model
        self._records: dict[str, _Record] = {}

    @property
    def is_on(self) -> bool:
        return self._lines_left > 0

    def step(
        self,
        batch: Sequence[Scheduled],
        picks: Any,
        read: Mapping[str, Total],
        labels: Mapping[str, Label],
    ) -> None:
        """Record a step. `read`: the counts of prompts that this step has prefilled to their end. Tokens that are
        computed again, after a preemption, count once."""
        first = 0
        for each in batch:
            if each.request_id in read:
                prefill = read[each.request_id]()
                label = labels.get(each.request_id, Label())
                self._records[each.request_id] = _Record(label, prefill, np.zeros_like(prefill), each.prompt)
            record = self._records.get(each.request_id)
            if record is not None and each.end > record.counted_to:
                tokens = np.arange(first + max(0, record.counted_to - each.start), first + each.tokens)
                record.decode += self._rows.of_tokens(tokens, picks)()
                record.steps += len(tokens)
                record.counted_to = each.end
            first += each.tokens

    def end(self, request_ids: Iterable[str]) -> None:
        ended = [(each, self._records.pop(each)) for each in request_ids if each in self._records]
        lines = [
            calibration_line(
                each, record.label, self._model, prefill=record.prefill, decode=record.decode, steps=record.steps
            )
            for each, record in ended
            if record.steps
        ][: self._lines_left]
        if lines:
            self._write(lines)

    def _write(self, lines: Sequence[str]) -> None:
        try:
            with self._file.open("a", encoding="ascii") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            logger.warning("expert counts: nothing more is recorded in %s: %s", self._file, error)
            self._stop()
            return
        self._lines_left -= len(lines)
        if not self.is_on:
            logger.warning("expert counts: %s has all the lines that it may have; the recording is over", self._file)
            self._stop()

    def _stop(self) -> None:
        self._lines_left = 0
        self._records.clear()
