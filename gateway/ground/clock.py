"""The only reader of clocks: drivers and edges are handed a Clock, the core is handed its numbers. It never waits."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache

_SECOND_NS = 1_000_000_000
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Real time. Tests hand in a subclass that stands still."""

    def now_ns(self) -> int:
        """Monotonic; the zero means nothing and differs between processes."""
        return time.monotonic_ns()

    def boot_ns(self) -> int:
        """As `now_ns`, and it goes on while the machine sleeps, where the system has such a clock. For leases: whoever
        was asleep is not to take himself for the leader still."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    def wall_ns(self) -> int:
        """Since 1970, and moved by whoever sets the clock. For dates: of certificates, of keys, of log lines."""
        return time.time_ns()

    def thread_ns(self) -> int:
        """What this thread has computed so far: what something takes of our time, however busy the machine is."""
        return time.thread_time_ns()

    def wall_time(self) -> str:
        """For log lines and file headers only, for example `2026-03-01T12:00:00.123456Z`."""
        second, rest_ns = divmod(self.wall_ns(), _SECOND_NS)
        return f"{_until_second(second)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=1)
def _until_second(second: int) -> str:
    """What all times within one second begin with."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
