"""Those whose prompts have been read and who wait for a decode worker, by age and by weight. It decides nothing.

Nothing bounds it but those who fill it: fewer are in prefill or pooled than there are free slots, plus a margin, and
each leaves when its lease ends at the latest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from gateway.core.decode.books import BOUNDLESS, RANK_BITS, Entry
from gateway.core.timers import Timers
from gateway.core.vocabulary import RequestId


class Pool:
    """Taking in and out is O(log n) comparisons."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, Entry] = {}
        """In the order in which they came."""
        self._ranks: list[int] = []
        self._by_rank: list[Entry] = []
        """The lightest first; of equal ones, the youngest first."""
        self._expiries = Timers()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: RequestId) -> bool:
        return key in self._entries

    def add(self, entry: Entry) -> None:
        assert entry.key not in self._entries, f"{entry.key} waits already"
        self._entries[entry.key] = entry
        at = bisect_left(self._ranks, entry.rank)
        self._ranks.insert(at, entry.rank)
        self._by_rank.insert(at, entry)
        self._expiries.set(entry.timer, entry.expires_ns)

    def take(self, key: RequestId) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            at = bisect_left(self._ranks, entry.rank)
            assert self._by_rank[at] is entry, "it is not where its rank says"
            del self._ranks[at]
            del self._by_rank[at]
            self._expiries.cancel(entry.timer)
        return entry

    def in_order(self) -> list[Entry]:
        """First come, first served."""
        return list(self._entries.values())

    def aged(self, now_ns: int) -> list[Entry]:
        """Those that have waited for half of their time, the one that expires first in front."""
        aged = [entry for entry in self._entries.values() if entry.aged_ns <= now_ns]
        aged.sort(key=_expiry)
        return aged

    def no_heavier_than(self, tokens: float) -> int:
        """How many are."""
        if tokens >= BOUNDLESS:
            return len(self._ranks)
        return bisect_right(self._ranks, ((int(tokens) + 1) << RANK_BITS) - 1)

    def nth_lightest(self, n: int) -> Entry:
        """Counted from 0. Of those that weigh as much, the oldest."""
        return self._by_rank[self.no_heavier_than(self._by_rank[n].weight) - 1]

    def slice_by_weight(self, start: int, stop: int) -> list[Entry]:
        """Lightest first."""
        return self._by_rank[start:stop]

    def oldest_ns(self) -> int | None:
        """When the one that has been here longest came."""
        for entry in self._entries.values():
            return entry.pooled_ns
        return None

    def next_expiry_ns(self) -> int | None:
        return self._expiries.next_ns()

    def expired(self, now_ns: int) -> list[RequestId]:
        """Those whose time is over, which leave."""
        keys = [RequestId(timer.id) for timer in self._expiries.pop_due(now_ns)]
        for key in keys:
            self.take(key)
        return keys


def _expiry(entry: Entry) -> tuple[int, int]:
    return entry.expires_ns, -entry.rank
