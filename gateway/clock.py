"""The only reader of clocks: drivers and edges are handed a Clock, the core is handed its numbers. It never waits."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """Real time. Tests hand in a subclass that stands still."""

    def now_ns(self) -> int:
        """Monotonic; the zero means nothing and differs between processes."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Since 1970, and moved by whoever sets the clock. For the dates of certificates and keys only."""
        return time.time_ns()

    def wall_time(self) -> str:
        """For log lines and file headers only, for example `2026-03-01T12:00:00.123456Z`."""
        return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
