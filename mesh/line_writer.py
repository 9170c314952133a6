"""Stream of log lines that a thread of its own writes to a file descriptor, many at a time: a terminal, pipe or disk
that takes nothing delays no request.

Lines beyond its bound are dropped and counted. A process that is killed loses the lines of its last tenth of a second.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock
from mesh.export_queue import ExportQueue
from mesh.logs import LogRateLimit

LINES_MAX = 8192
"""Lines that may wait to be written."""
_BATCH_MAX = 512
_INTERVAL_S = 0.1
_LOOK_S = 1.0
_LAST_LINES_S = 2.0
"""Seconds that the last lines may take when the process ends."""


class LineWriter:
    """Writer of text to a descriptor, as far as a logger needs one. `write` never waits."""

    def __init__(self, descriptor: int, *, lines_max: int = LINES_MAX) -> None:
        self._descriptor = descriptor
        self._outbox: ExportQueue[str] = ExportQueue(
            self._write_all, queue_max=lines_max, batch_max=_BATCH_MAX, interval_s=_INTERVAL_S, name="nightside-log"
        )
        self.write = self._outbox.put
        """Takes a line, or drops it if too many wait."""

    @property
    def lines_lost(self) -> int:
        """Lines that were dropped for want of room, or that the descriptor refused."""
        return self._outbox.overflowed + self._outbox.refused

    def start(self) -> None:
        self._outbox.start()

    def close(self, wait_s: float) -> int:
        """Write what is left, for `wait_s` seconds at most, and return how many lines are lost by this end. Blocks."""
        return self._outbox.close(wait_s)

    def flush(self) -> None:
        """Do nothing: the thread writes soon."""

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def _write_all(self, lines: list[str]) -> bool:
        """Write lines, waiting as long as it takes. False if the descriptor takes no more, as a pipe without a
        reader."""
        left = memoryview("".join(lines).encode("utf-8", "backslashreplace"))
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                select.select((), (self._descriptor,), ())
            except OSError:
                return False
        return True


@contextmanager
def lines_written_aside(stream: TextIO) -> Iterator[tuple[TextIO, LineWriter]]:
    """Context with a stream for `make_logger` that writes to the given stream's descriptor, and its writer. Leaving it
    writes what is left."""
    stream.flush()
    writer = LineWriter(stream.fileno())
    writer.start()
    try:
        yield cast(TextIO, writer), writer  # a logger uses these three methods of it only
    finally:
        writer.close(_LAST_LINES_S)


class LostLines:
    """Watch over the lines that a writer loses: counts them, and logs their number every ten seconds at most."""

    def __init__(
        self, lines_lost: Callable[[], int], on_lost: Callable[[int], None], clock: Clock, log: FilteringBoundLogger
    ) -> None:
        self._lines_lost = lines_lost
        self._on_lost = on_lost
        self._log = log
        self._seldom = LogRateLimit(clock)
        self._counted = 0
        self._told = 0

    async def watch(self) -> None:
        """Look once a second."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        lost = self._lines_lost()
        if lost > self._counted:
            self._on_lost(lost - self._counted)
            self._counted = lost
        if lost > self._told and self._seldom.turn() is not None:
            self._log.warning("log_lines_lost", lines=lost - self._told)
            self._told = lost
