"""A clock for tests."""

from __future__ import annotations

from mesh.clock import Clock


class StillClock(Clock):
    """Clock that stands still until a test moves it."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def now_ns(self) -> int:
        return self.now

    def boot_ns(self) -> int:
        return self.now
