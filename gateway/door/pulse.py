"""Keeps a stream's connection from looking dead while its request waits. It sends no part of an answer.

docs/decisions/0010-comments-while-a-request-waits.md says why it is off by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """Context that calls `beat` after each `silence_s` seconds, until it returns False."""

    def __init__(self, silence_s: float, beat: Callable[[], bool]) -> None:
        self._silence_s = silence_s
        self._beat = beat
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._wait()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._silence_s, self._act)

    def _act(self) -> None:
        self._timer = None
        if self._beat():
            self._wait()
