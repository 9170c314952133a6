"""Notices that the process has no file descriptor left. A server then drops new connections, and the event loop in use
reports nothing.

It only looks; it closes no descriptor and refuses no connection.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock

TELL_INTERVAL_NS = 10_000_000_000
"""Least time between two log lines while descriptors are short."""


class DescriptorWatch:
    """Check for free file descriptors that logs and counts failures, with a bounded number of lines."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, on_exhausted: Callable[[], None]) -> None:
        self._clock = clock
        self._log = log
        self._on_exhausted = on_exhausted
        self._quiet_until_ns = 0
        self._untold = 0

    def look(self) -> None:
        """Check by opening a file and closing it at once."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._exhausted(error)

    def _exhausted(self, error: OSError) -> None:
        self._on_exhausted()
        self._untold += 1
        now_ns = self._clock.now_ns()
        if now_ns < self._quiet_until_ns:
            return
        self._log.error(
            "file_descriptors_exhausted",
            reason=error.strerror,
            limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            samples=self._untold,
        )
        self._quiet_until_ns, self._untold = now_ns + TELL_INTERVAL_NS, 0
