"""Check of a whole input file, line by line, at the gateway that is handed a batch and at the client that plans one."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from gateway.features.batches.lines import LineChecker
from gateway.features.batches.state import LineFault

MODEL_NOT_FOUND = LineFault("model_not_found", "The model does not exist for this key.", "body.model")


def check_file(
    file: BinaryIO, checker: LineChecker, line_bytes_max: int, on_read: Callable[[int], None] = lambda _: None
) -> tuple[LineFault, ...]:
    """Check a whole file, and close it; blocks. A line of which more than the largest length is read is a fault.
    `on_read` is told the bytes of each piece that was read. Raises OSError."""
    with file:
        while line := file.readline(line_bytes_max + 1):
            on_read(len(line))
            if not checker.take(line):
                break
            while len(line) > line_bytes_max and not line.endswith(b"\n"):
                line = file.readline(line_bytes_max + 1)
                on_read(len(line))
    return checker.end()
