"""Who is held for each replica: how many, how much they bring, what they wait for. It counts, and decides nothing."""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.requests import Hold


class Holds:
    """Of one replica.

    Those who wait for its time take turns: only the first of them may go past the bound of what overtakes it. Those who
    wait for what they would push out of its cache (cold ones) have no turn, and bar nobody's way.
    """

    __slots__ = (
        "_by_beginning",
        "_bytes_in_turn",
        "_in_turn",
        "bytes",
        "count",
        "overtaken_until_bytes",
        "pushed_bytes",
    )

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        """That they bring, all together."""
        self._in_turn: OrderedDict[Hold, None] = OrderedDict()
        self._bytes_in_turn = 0
        self._by_beginning: dict[bytes, int] = {}
        self.pushed_bytes = 0
        """Of prefill, all that was ever sent there by us."""
        self.overtaken_until_bytes = 0
        """Once so much has been sent, nobody new goes past those who are held: each is overtaken by no more prefill
        than there was before it, and than it brings itself."""

    def alike(self, beginning: bytes) -> int:
        """How many wait for the same beginning of a prompt."""
        return self._by_beginning.get(beginning, 0)

    @property
    def lets_pass(self) -> bool:
        """May anybody else be sent there before them?"""
        return not self._in_turn or self.pushed_bytes < self.overtaken_until_bytes

    def is_first(self, hold: Hold | None) -> bool:
        """Is it its turn?"""
        return hold is not None and (hold.is_next or hold is next(iter(self._in_turn), None))

    def add(self, hold: Hold, backlog_bytes: int) -> None:
        self.count += 1
        self.bytes += hold.uncached_bytes
        self._by_beginning[hold.beginning] = self.alike(hold.beginning) + 1
        if hold.is_cold:
            return
        if not self._in_turn:
            self.overtaken_until_bytes = self.pushed_bytes + backlog_bytes + hold.uncached_bytes
        self._in_turn[hold] = None
        self._bytes_in_turn += hold.uncached_bytes

    def remove(self, hold: Hold) -> None:
        """Whoever goes out of turn gives nobody leave to overtake the first."""
        self.count -= 1
        self.bytes -= hold.uncached_bytes
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
