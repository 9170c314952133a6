"""Queue of items to export, and the one thread that exports them: a receiver that is slow, dead or stuck delays no
request, and the end of the process only for the time given to it.

`put` never waits: an item without room is dropped, and counted. The module does not know what the items are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class ExportQueue(Generic[_Item]):
    """Queue and its exporting thread. `put` and `close` are called by one other thread."""

    def __init__(
        self, export: Callable[[list[_Item]], bool], *, queue_max: int, batch_max: int, interval_s: float, name: str
    ) -> None:
        """`name` is the thread's. `export` returns True if the items were accepted. It may be called until `close`
        returns, and may still be running then."""
        self.exported = 0
        self.refused = 0
        """Items that the receiver did not accept, or not in time."""
        self.overflowed = 0
        """Items dropped for want of room."""
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
            target=self._run, name=name, daemon=True
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
        """Export what is left, for `wait_s` at most, and return how many items are lost. Blocks: call it in a
        thread."""
        self._is_closing = True
        self._is_due.set()
        self._thread.join(wait_s)
        self._is_over = True
        return self._taken - self.exported - self.refused

    def _run(self) -> None:
        while not self._is_closing:
            is_full = self._is_due.wait(self._interval_s)
            self._is_due.clear()
            self._send(self._batch_max if is_full and not self._is_closing else 1)
        self._send(1)

    def _send(self, least: int) -> None:
        """Export batches while at least `least` items wait. A small batch costs nearly as much as a large one, so items
        behind a full batch wait for others."""
        while len(self._queue) >= least and not self._is_over:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))]
            if self._export(batch):
                self.exported += len(batch)
            else:
                self.refused += len(batch)
