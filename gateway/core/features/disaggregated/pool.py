"""Prefilled requests that wait for a decode worker, by age and by weight. The pool makes no decisions.

Its size is bounded by the callers that fill it: requests in prefill or pooled are fewer than the free slots plus a
margin, and each leaves when its lease ends at the latest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from gateway.core.features.disaggregated.books import BOUNDLESS, RANK_BITS, Entry
from gateway.core.kernel.timers import Timers
from gateway.core.vocabulary import RequestId


class Pool:
    """Waiting entries. Adding and removing take O(log n) comparisons."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, Entry] = {}
        """Entries in order of arrival."""
        self._ranks: list[int] = []
        self._by_rank: list[Entry] = []
        """Entries by rank: lightest first; of equal weight, youngest first."""
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
        """Entries in order of arrival."""
        return list(self._entries.values())

    def aged(self, now_ns: int) -> list[Entry]:
        """Entries that have waited for half of their time, the first to expire first."""
        aged = [entry for entry in self._entries.values() if entry.aged_ns <= now_ns]
        aged.sort(key=_expiry)
        return aged

    def no_heavier_than(self, tokens: float) -> int:
        """Number of entries whose weight is at most `tokens`."""
        if tokens >= BOUNDLESS:
            return len(self._ranks)
        return bisect_right(self._ranks, ((int(tokens) + 1) << RANK_BITS) - 1)

    def nth_lightest(self, n: int) -> Entry:
        """Entry of the nth lowest weight, counted from 0; of all entries with that weight, the oldest."""
        return self._by_rank[self.no_heavier_than(self._by_rank[n].weight) - 1]

    def slice_by_weight(self, start: int, stop: int) -> list[Entry]:
        """Entries from `start` to `stop` by weight, lightest first."""
        return self._by_rank[start:stop]

    def oldest_ns(self) -> int | None:
        """Arrival time of the oldest entry; None: the pool is empty."""
        for entry in self._entries.values():
            return entry.pooled_ns
        return None

    def next_expiry_ns(self) -> int | None:
        return self._expiries.next_ns()

    def expired(self, now_ns: int) -> list[RequestId]:
        """Remove the expired entries and return their keys."""
        keys = [RequestId(timer.id) for timer in self._expiries.pop_due(now_ns)]
        for key in keys:
            self.take(key)
        return keys


def _expiry(entry: Entry) -> tuple[int, int]:
    return entry.expires_ns, -entry.rank
