"""Requests held for each replica: their number, their bytes and the order of their turns. It counts, and decides
nothing."""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.kernel.requests import Hold


class Holds:
    """Requests held for one replica.

    Requests that wait for the replica's time take turns: only the first of them may go once the overtaking bound is
    reached. Requests that wait because they would evict too much of its cache (cold ones) have no turn, and bar no
    other request.
    """

    __slots__ = (
        "_by_beginning",
        "_bytes_in_turn",
        "_in_turn",
        "bytes",
        "bytes_appending",
        "count",
        "count_appending",
        "overtaken_until_bytes",
        "pushed_bytes",
    )

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        """Bytes to prefill of all held requests together."""
        self.count_appending = self.bytes_appending = 0
        """Held requests whose answer has begun, and their bytes to prefill. They go before all others."""
        self._in_turn: OrderedDict[Hold, None] = OrderedDict()
        self._bytes_in_turn = 0
        self._by_beginning: dict[bytes, int] = {}
        self.pushed_bytes = 0
        """Bytes of prefill ever sent to the replica by this gateway."""
        self.overtaken_until_bytes = 0
        """Value of `pushed_bytes` from which no new request may overtake the held ones: each is overtaken by no more
        prefill than was ahead of it plus its own."""

    def alike(self, beginning: bytes) -> int:
        """Number of held requests with the same beginning of the prompt."""
        return self._by_beginning.get(beginning, 0)

    @property
    def lets_pass(self) -> bool:
        """Return true if another request may be sent to the replica before the held ones."""
        return not self._in_turn or self.pushed_bytes < self.overtaken_until_bytes

    def is_first(self, hold: Hold | None) -> bool:
        """Return true if it is the hold's turn."""
        return hold is not None and (hold.is_next or hold is next(iter(self._in_turn), None))

    def add(self, hold: Hold, backlog_bytes: int) -> None:
        self.count += 1
        self.bytes += hold.uncached_bytes
        if hold.appends:
            self.count_appending += 1
            self.bytes_appending += hold.uncached_bytes
        self._by_beginning[hold.beginning] = self.alike(hold.beginning) + 1
        if hold.is_cold:
            return
        if not self._in_turn:
            self.overtaken_until_bytes = self.pushed_bytes + backlog_bytes + hold.uncached_bytes
        self._in_turn[hold] = None
        self._bytes_in_turn += hold.uncached_bytes

    def remove(self, hold: Hold) -> None:
        """Remove a hold. Removing one out of turn does not extend the bound by which the first may be overtaken."""
        self.count -= 1
        self.bytes -= hold.uncached_bytes
        if hold.appends:
            self.count_appending -= 1
            self.bytes_appending -= hold.uncached_bytes
        left = self._by_beginning.pop(hold.beginning) - 1
        if left:
            self._by_beginning[hold.beginning] = left
        if hold.is_cold:
            return
        was_first = hold is next(iter(self._in_turn), None)
        del self._in_turn[hold]
        self._bytes_in_turn -= hold.uncached_bytes
        if was_first and self._in_turn:
            self.overtaken_until_bytes = self.pushed_bytes + self._bytes_in_turn // len(self._in_turn)
