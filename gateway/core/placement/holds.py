"""Who is held for each replica: how many, how much they bring, what they wait for. It counts, and decides nothing."""

from __future__ import annotations

from gateway.core.requests import Hold


class Holds:
    """Of one replica."""

    __slots__ = ("_by_beginning", "bytes", "count", "overtaken_until_bytes", "pushed_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        """That they bring, all together."""
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
        return not self.count or self.pushed_bytes < self.overtaken_until_bytes

    def add(self, hold: Hold, backlog_bytes: int) -> None:
        if not self.count:
            self.overtaken_until_bytes = self.pushed_bytes + backlog_bytes + hold.uncached_bytes
        self.count += 1
        self.bytes += hold.uncached_bytes
        self._by_beginning[hold.beginning] = self.alike(hold.beginning) + 1

    def remove(self, hold: Hold) -> None:
        self.count -= 1
        self.bytes -= hold.uncached_bytes
        left = self._by_beginning.pop(hold.beginning) - 1
        if left:
            self._by_beginning[hold.beginning] = left
        if self.count:
            self.overtaken_until_bytes = self.pushed_bytes + self.bytes // self.count
