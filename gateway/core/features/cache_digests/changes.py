"""Changes of a digest in the order in which they happened, so that each peer can be told what is new to it.

An entry stands in the log once, at its last change. Entries that are gone are remembered for a while only: a peer that
has missed a forgotten one has to be told everything anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_SLACK: Final = 1024
_LOOKED_AT_MAX: Final = 16_384
"""Largest number of changes that one answer looks at; the rest follows with the next one."""


class Batch:
    """Entries that one peer is told next."""

    __slots__ = ("added", "removed", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        """Version up to which the peer then knows everything."""
        self.added: list[int] = []
        self.removed: list[int] = []


class Changes:
    """Log of entries that came and went. An entry is an int, whatever it stands for."""

    def __init__(self, gone_max: int) -> None:
        self._gone_max = gone_max
        self.version = 0
        self.forgotten = 0
        """Version up to which entries that are gone are not remembered any more."""
        self._last: dict[int, int] = {}
        """Version of the last change of each entry: negative if it has gone."""
        self._gone = 0
        self._versions: list[int] = []
        self._entries: list[int] = []
        """Entry of each version in the log, with those that have changed again since."""

    def __len__(self) -> int:
        """Number of entries that are there."""
        return len(self._last) - self._gone

    def __contains__(self, entry: int) -> bool:
        return self._last.get(entry, 0) > 0

    def add(self, entry: int) -> None:
        last = self._last.get(entry, 0)
        if last <= 0:
            self._gone -= last < 0
            self._note(entry, 1)

    def remove(self, entry: int) -> None:
        if self._last.get(entry, 0) > 0:
            self._gone += 1
            self._note(entry, -1)

    def after(self, version: int, first: int, count_max: int, may_tell: Callable[[int], bool]) -> Batch:
        """Changes after a version, at most so many of those that may be told. Entries that went by version `first` are
        left out: the peer was never told of them."""
        assert max(version, first) >= self.forgotten, "a peer that missed a removal starts anew"
        batch = Batch(version)
        start = bisect_right(self._versions, version)
        for at in range(start, min(len(self._versions), start + _LOOKED_AT_MAX)):
            if len(batch.added) + len(batch.removed) >= count_max:
                return batch
            changed, entry = self._versions[at], self._entries[at]
            last = self._last.get(entry, 0)
            if last == changed and may_tell(entry):
                batch.added.append(entry)
            elif last == -changed and changed > first and may_tell(entry):
                batch.removed.append(entry)
            batch.version = changed
        return batch

    def violations(self) -> list[str]:
        """Return the broken invariants, for tests."""
        gone = sum(last < 0 for last in self._last.values())
        log = dict(zip(self._versions, self._entries, strict=True))
        broken = []
        if gone != self._gone:
            broken.append(f"{gone} entries have gone, {self._gone} are counted")
        if self._versions != sorted(set(self._versions)):
            broken.append("the log is out of order")
        if any(log.get(abs(last)) != entry for entry, last in self._last.items()):
            broken.append("the log lacks the last change of an entry")
        if len(self._versions) > 2 * len(self._last) + _SLACK or gone > self._gone_max:
            broken.append("the log is too long")
        return broken

    def _note(self, entry: int, sign: int) -> None:
        self.version += 1
        self._last[entry] = sign * self.version
        self._versions.append(self.version)
        self._entries.append(entry)
        if self._gone > self._gone_max or len(self._versions) > 2 * len(self._last) + _SLACK:
            self._shorten()

    def _shorten(self) -> None:
        """Drop changes that others have followed and, where too many entries have gone, the older half of those."""
        if self._gone > self._gone_max:
            went = sorted([-last for last in self._last.values() if last < 0])
            self.forgotten = went[len(went) // 2]
            kept = {entry: last for entry, last in self._last.items() if last > 0 or -last > self.forgotten}
            self._gone -= len(self._last) - len(kept)
            self._last = kept
        living = [
            (changed, entry)
            for changed, entry in zip(self._versions, self._entries, strict=True)
            if abs(self._last.get(entry, 0)) == changed
        ]
        self._versions = [changed for changed, _ in living]
        self._entries = [entry for _, entry in living]
