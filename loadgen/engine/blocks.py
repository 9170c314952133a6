"""KV cache of a modelled engine: a finite pool of blocks, named by content, reused by prefix and evicted by last use.

Names come packed, `NAME_BYTES` each, and chained: two texts with the same name for block i agree in all blocks up to i.
Consecutive blocks that the same sequences hold are therefore kept as one run, and a prefix of a hundred blocks is
found, held, released and evicted in as many steps as it has runs, mostly one for each turn of a conversation.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

NAME_BYTES = 8


def packed(names: Sequence[int]) -> bytes:
    """Pack 64-bit numbers as names."""
    return struct.pack(f">{len(names)}Q", *names)


@dataclass(frozen=True, slots=True)
class NamesChange:
    """Blocks that were named, each after the one before it, or evicted, the last of a text first."""

    is_stored: bool
    names: bytes
    parent: bytes = b""
    """Name of the block before the first one that was named; empty: it begins a text."""


class _Run:
    """Blocks `start` … `end` - 1 of a chain: all of them idle, or all held by the same sequences."""

    __slots__ = ("base", "chain", "end", "references", "start")

    def __init__(self, chain: bytes, base: int, start: int, end: int, references: int) -> None:
        self.chain = chain
        """Names from block `base` on, at least to the end: a holder's whole chain, or only this run's names."""
        self.base = base
        self.start = start
        self.end = end
        self.references = references

    @property
    def head(self) -> bytes:
        """Name of the first block."""
        return self.name(self.start)

    def name(self, position: int) -> bytes:
        return _name(self.chain, position - self.base)

    def has(self, chain: bytes, position: int) -> bool:
        return self.start <= position < self.end and self.name(position) == _name(chain, position)

    def common_end(self, chain: bytes, limit: int) -> int:
        """First block at which the other chain differs from this run, at most `limit`; both have the run's first
        block."""
        end, base = min(limit, self.end), self.base
        low = self.start + 1
        if chain is self.chain or _names(chain, low, end) == _names(self.chain, low - base, end - base):
            return end
        while low < end:  # equal names imply that all names before them are equal
            middle = (low + end) // 2
            if _name(chain, middle) == self.name(middle):
                low = middle + 1
            else:
                end = middle
        return low

    def rename(self, chain: bytes, end: int) -> None:
        """Let the run use this chain, which has the same blocks, and end at `end`, which may add blocks."""
        self.chain, self.base, self.end = chain, 0, end

    def trim(self) -> None:
        """Keep only this run's own names: the chain that contains them may be a hundred times as long."""
        self.chain = _names(self.chain, self.start - self.base, self.end - self.base)
        self.base = self.start


class Holding:
    """Blocks of the pool that one sequence holds for its tokens; full ones may have names.

    Two sequences may compute the same block at once: the first to fill it gives it its name, the other's stays
    anonymous and cannot be reused.
    """

    __slots__ = ("anonymous", "blocks", "chain", "copy", "filled", "last")

    def __init__(self, chain: bytes) -> None:
        self.chain = chain
        """Names of the sequence's full blocks, in order; blocks past its end have no name and cannot be reused."""
        self.blocks = 0
        self.filled = 0
        """Leading blocks that were full and were considered for a name."""
        self.anonymous: list[int] = []
        """Positions of filled blocks without a name, because another sequence's block has it."""
        self.last: _Run | None = None
        """Run of the last filled block. None if that block is anonymous or does not exist."""
        self.copy: _Run | None = None
        """Run in which the name of the last anonymous block was found; the search for the next name starts there."""

    @property
    def named(self) -> int:
        return self.filled - len(self.anonymous)

    @property
    def nameable(self) -> int:
        return len(self.chain) // NAME_BYTES


class BlockPool:
    """Pool of blocks, each free, idle (named, held by no sequence, reusable until evicted) or held by sequences.

    A named block is the first of a run or follows the block before it in the same run, so that it is found by the names
    before it; `_runs` maps the first name of each run to the run.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._idle = 0
        self._runs: dict[bytes, _Run] = {}
        self._idle_runs: OrderedDict[_Run, None] = OrderedDict()
        """Idle runs in order of their release. The last block of a run is evicted first."""
        self._changes: list[NamesChange] | None = None

    def keep_changes(self) -> None:
        """Note from now on which names come and go, for `take_changes`."""
        self._changes = []

    def take_changes(self) -> list[NamesChange]:
        """Changes since the last call."""
        if not self._changes:
            return []
        taken, self._changes = self._changes, []
        return taken

    @property
    def total(self) -> int:
        return self._total

    @property
    def available(self) -> int:
        """Blocks that can be allocated, counting idle ones that would be evicted."""
        return self._free + self._idle

    @property
    def held(self) -> int:
        return self._total - self._free - self._idle

    def matched(self, chain: bytes, limit: int) -> tuple[int, int]:
        """Leading blocks, at most `limit`, that are in the cache, and how many of these are idle: reusing those lowers
        `available`."""
        limit = min(limit, len(chain) // NAME_BYTES)
        position = idle = 0
        while position < limit:
            run = self._runs.get(_name(chain, position))
            if run is None:
                break
            end = run.common_end(chain, limit)
            if not run.references:
                idle += end - position
            position = end
        return position, idle

    def reuse(self, holding: Holding, count: int) -> None:
        """Let a sequence that holds nothing hold its first `count` blocks, which are all in the cache."""
        position = 0
        while position < count:
            run = self._runs[_name(holding.chain, position)]
            position = run.common_end(holding.chain, count)
            if position < run.end:
                run = self._cut(run, position)
            if not run.references:
                self._idle_runs.pop(run, None)
                self._idle -= run.end - run.start
            run.references += 1
            holding.last = run
        holding.blocks = holding.filled = count

    def allocate(self, holding: Holding, count: int) -> None:
        """Give a sequence blocks without a name: free ones first, then the idle ones released longest ago."""
        assert count <= self.available, "allocated more blocks than are available"
        holding.blocks += count
        from_free = min(count, self._free)
        self._free -= from_free
        if count > from_free:
            self._evict(count - from_free)

    def publish(self, holding: Holding, full: int) -> None:
        """Name the blocks up to `full` that have a name which no other held block bears. An idle block with that name
        becomes free."""
        full = min(full, holding.nameable)
        while holding.filled < full:
            copy = self._copy_of_next(holding)
            if copy is None:
                self._name_until(holding, self._end_of_new(holding, full))
            elif copy.references:
                holding.anonymous.append(holding.filled)
                self._note_stored(holding.chain, holding.filled, holding.filled + 1)
                holding.filled += 1
                holding.last, holding.copy = None, copy
            else:
                self._take_out(copy, holding.filled)
                self._free += 1
                self._name_until(holding, holding.filled + 1)

    def publish_new(self, holding: Holding, full: int) -> None:
        """Name the blocks up to `full`, like `publish`, where none of the names is in the cache."""
        full = min(full, holding.nameable)
        if holding.filled < full:
            self._name_until(holding, full)

    def are_new(self, ends: list[tuple[Holding, int]]) -> bool:
        """True if no sequence would find a block with one of its names if all of these published up to `full`, in any
        order."""
        firsts = set()
        for holding, full in ends:
            if holding.filled >= min(full, holding.nameable):
                continue
            if holding.filled and holding.last is None:  # the search for copies is slow, and most blocks are new
                return False
            if self._end_of_new(holding, full) < min(full, holding.nameable):
                return False
            first = _name(holding.chain, holding.filled)
            if first in firsts:
                return False
            firsts.add(first)
        return True

    def release(self, holding: Holding) -> None:
        """Take back all that a sequence holds; the end of its chain becomes the first to be evicted."""
        self._free += holding.blocks - holding.named
        idle: list[_Run] = []
        for run in self._runs_of(holding):
            run.references -= 1
            if run.references:
                continue
            self._idle += run.end - run.start
            if idle and idle[-1].end == run.start:
                del self._runs[run.head]
                idle[-1].rename(holding.chain, run.end)
                run.end = run.start  # references to this run from a `Holding.copy` find it empty
            else:
                idle.append(run)
        for run in reversed(idle):
            run.trim()
            self._idle_runs[run] = None
        holding.anonymous.clear()
        holding.blocks = holding.filled = 0
        holding.last = holding.copy = None

    def _runs_of(self, holding: Holding) -> list[_Run]:
        """Runs that a sequence holds, in order."""
        runs = []
        position = 0
        for gap in (*holding.anonymous, holding.filled):
            while position < gap:
                run = self._runs[_name(holding.chain, position)]
                runs.append(run)
                position = run.end
            position = gap + 1
        return runs

    def _evict(self, count: int) -> None:
        """Remove the idle blocks that were released longest ago."""
        self._idle -= count
        while count:
            run = next(iter(self._idle_runs))
            evicted = min(count, run.end - run.start)
            count -= evicted
            if evicted == run.end - run.start:
                del self._idle_runs[run]
                del self._runs[run.head]
            if self._changes is not None:
                names = [run.name(position) for position in range(run.end - 1, run.end - evicted - 1, -1)]
                self._changes.append(NamesChange(False, b"".join(names)))
            run.end -= evicted

    def _cut(self, run: _Run, position: int) -> _Run:
        """Make the blocks before `position` a run of their own. If the run is idle, the new run is not queued for
        eviction: it is about to be held."""
        first = _Run(run.chain, run.base, run.start, position, run.references)
        self._runs[first.head] = first
        run.start = position
        self._runs[run.head] = run
        if not run.references:
            run.trim()
        return first

    def _copy_of_next(self, holding: Holding) -> _Run | None:
        """Run with the name that the next block to fill would get."""
        position = holding.filled
        copy = self._runs.get(_name(holding.chain, position))
        if copy is not None or not position or holding.last is not None:
            return copy  # the preceding block's run is held by this sequence, and so ends with that block
        near = holding.copy
        if near is not None and near.has(holding.chain, position - 1):
            return near if near.has(holding.chain, position) else None
        return self._search(holding.chain, position)

    def _search(self, chain: bytes, wanted: int) -> _Run | None:
        """Run with block `wanted` of the chain, even if blocks before it were evicted."""
        position = 0
        while position <= wanted:
            run = self._runs.get(_name(chain, position))
            end = position + 1 if run is None else run.common_end(chain, wanted + 1)
            if run is not None and end > wanted:
                return run
            position = end
        return None

    def _end_of_new(self, holding: Holding, full: int) -> int:
        """First block after the next one, at most `full`, that has a copy; the next block itself if it begins a run."""
        position, full = holding.filled, min(full, holding.nameable)
        while position < full and _name(holding.chain, position) not in self._runs:
            position += 1
        return position

    def _name_until(self, holding: Holding, end: int) -> None:
        """Name blocks of which there is no copy. The blocks after the first follow it in its run, so only a run that
        begins with one of them could contain one."""
        start, last = holding.filled, holding.last
        self._note_stored(holding.chain, start, end)
        if last is not None and last.references == 1:
            last.rename(holding.chain, end)
        else:
            last = _Run(holding.chain, 0, start, end, 1)
            self._runs[last.head] = last
        holding.last = last
        holding.filled = end

    def _note_stored(self, chain: bytes, start: int, end: int) -> None:
        """Note blocks that a sequence has filled; vLLM tells of a block again if another one has its name."""
        if self._changes is not None:
            parent = _name(chain, start - 1) if start else b""
            self._changes.append(NamesChange(True, _names(chain, start, end), parent))

    def _take_out(self, run: _Run, position: int) -> None:
        """Remove one block of an idle run; the others keep their turn."""
        self._idle -= 1
        if position == run.start:
            self._drop_first(run)
        else:
            rest = _Run(run.chain, run.base, position + 1, run.end, 0)
            run.end = position
            if rest.start < rest.end:
                self._queue_before(rest, run)

    def _drop_first(self, run: _Run) -> None:
        del self._runs[run.head]
        run.start += 1
        if run.start < run.end:
            self._runs[run.head] = run
        else:
            del self._idle_runs[run]

    def _queue_before(self, rest: _Run, run: _Run) -> None:
        """Queue an idle run for eviction before another. It visits all idle runs; the case arises only for a sequence
        whose preceding block is anonymous while that block's name is idle."""
        self._runs[rest.head] = rest
        turns = [each for old in self._idle_runs for each in ((rest, old) if old is run else (old,))]
        self._idle_runs = OrderedDict.fromkeys(turns)


def common_names(one: bytes, other: bytes) -> int:
    """Number of leading names that two chains share; equal names imply that all names before them are equal."""
    low, high = 0, min(len(one), len(other)) // NAME_BYTES
    while low < high:
        middle = (low + high) // 2
        if _name(one, middle) == _name(other, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _name(chain: bytes, position: int) -> bytes:
    return chain[position * NAME_BYTES : (position + 1) * NAME_BYTES]


def _names(chain: bytes, start: int, end: int) -> bytes:
    return chain[start * NAME_BYTES : end * NAME_BYTES]
