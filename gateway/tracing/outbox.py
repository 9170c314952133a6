"""What waits to be exported, and the one thread that exports it: a collector that is slow, dead or stuck costs no
request anything, and the end of the process no more than it is given.

Whoever puts something in never waits: where there is no room it is let go, and counted. It knows nothing of spans.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Outbox(Generic[_Item]):
    """`put` and `close` are called by one thread; `export` by another one, of its own."""

    def __init__(
        self, export: Callable[[list[_Item]], bool], *, queue_max: int, batch_max: int, interval_s: float
    ) -> None:
        """`export` says whether it was taken. It has a deadline of its own, and may be called until `close` returns,
        and be still running then."""
        self.exported = 0
        self.refused = 0
        """Not taken, or not in time."""
        self.overflowed = 0
        """There was no room for them."""
        self._taken = 0
        self._export = export
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._interval_s = interval_s
        self._queue: deque[_Item] = deque()
        self._is_due = threading.Event()
        self._is_closing = False
        self._is_over = False
        self._thread = threading.Thread(  # noqa: TID251 - exporters block, and a pool's thread would hold up the exit
            target=self._run, name="nightside-traces", daemon=True
        )

    def __len__(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: _Item) -> None:
        queue = self._queue
        if len(queue) >= self._queue_max:
            self.overflowed += 1
            return
        queue.append(item)
        self._taken += 1
        if len(queue) >= self._batch_max:
            self._is_due.set()

    def close(self, wait_s: float) -> int:
        """Export what is left, for so long at most; returns how many are lost. Blocks: call it in a thread."""
        self._is_closing = True
        self._is_due.set()
        self._thread.join(wait_s)
        self._is_over = True
        return self._taken - self.exported - self.refused

    def _run(self) -> None:
        while not self._is_closing:
            self._is_due.wait(self._interval_s)
            self._is_due.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        """All that there is."""
        while self._queue and not self._is_over:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
            if self._export(batch):
                self.exported += len(batch)
            else:
                self.refused += len(batch)
