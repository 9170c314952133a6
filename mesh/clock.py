"""Reads the clocks, alone in the program: drivers and edges are handed a Clock, the core is handed its numbers. It
never waits.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache

_SECOND_NS = 1_000_000_000
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Real time. Tests use a subclass that stands still."""

    now_ns = staticmethod(time.monotonic_ns)
    """Monotonic nanoseconds from an arbitrary zero, which differs between processes."""

    def boot_ns(self) -> int:
        """Monotonic nanoseconds that also count while the machine sleeps, where the system has such a clock. For
        leases: a leader that slept must not take itself for the leader still."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    wall_ns = staticmethod(time.time_ns)
    """Wall time in nanoseconds since 1970, which changes when the clock is set. For dates of certificates, keys and log
    lines."""

    def thread_ns(self) -> int:
        """CPU time of this thread in nanoseconds: the cost of an operation, however busy the machine is."""
        return time.thread_time_ns()

    def wall_time(self) -> str:
        """Wall time as text for log lines and file headers only, such as `2026-03-01T12:00:00.123456Z`."""
        second, rest_ns = divmod(self.wall_ns(), _SECOND_NS)
        return f"{_until_second(second)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=1)
def _until_second(second: int) -> str:
    """Text up to the seconds, which all times within one second share."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
