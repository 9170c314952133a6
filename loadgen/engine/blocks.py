"""The KV cache of a modelled engine: a finite pool of blocks, named by what they hold, reused by prefix, evicted by
last use.

Names come packed, `NAME_BYTES` each, and chained: two texts with the same name for block i agree in all blocks up to i.
So blocks in a row that the same sequences hold are kept as one run, and a prefix of a hundred blocks is found, held,
released and evicted in as many steps as it has runs, mostly one for each turn of a conversation.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence

NAME_BYTES = 8


def packed(names: Sequence[int]) -> bytes:
    """64-bit numbers as names."""
    return struct.pack(f">{len(names)}Q", *names)


class _Run:
    """Blocks `start` … `end` - 1 of a chain: all of them idle, or all held by the same sequences."""

    __slots__ = ("base", "chain", "end", "references", "start")

    def __init__(self, chain: bytes, base: int, start: int, end: int, references: int) -> None:
        self.chain = chain
        """The names from block `base` on, at least to the end: a holder's whole chain, or nothing else than ours."""
        self.base = base
        self.start = start
        self.end = end
        self.references = references

    @property
    def head(self) -> bytes:
        """The name of its first block."""
        return self.name(self.start)

    def name(self, position: int) -> bytes:
        return _name(self.chain, position - self.base)

    def has(self, chain: bytes, position: int) -> bool:
        return self.start <= position < self.end and self.name(position) == _name(chain, position)

    def common_end(self, chain: bytes, limit: int) -> int:
        """Where the other chain leaves this run, at most at `limit`; both have the run's first block."""
        end, base = min(limit, self.end), self.base
        low = self.start + 1
        if chain is self.chain or _names(chain, low, end) == _names(self.chain, low - base, end - base):
            return end
        while low < end:  # an equal name says that all names before it are equal
            middle = (low + end) // 2
            if _name(chain, middle) == self.name(middle):
                low = middle + 1
            else:
                end = middle
        return low

    def rename(self, chain: bytes, end: int) -> None:
        """The same blocks, and perhaps more of them, as this chain has them."""
        self.chain, self.base, self.end = chain, 0, end

    def trim(self) -> None:
        """Keep no names but its own: the chain of which it is a part may be a hundred times as long."""
        self.chain = _names(self.chain, self.start - self.base, self.end - self.base)
        self.base = self.start


class Holding:
    """What one sequence holds of the pool: the blocks of its tokens, of which the full ones may have names.

    Two sequences may compute the same block at once: the first to fill it gives it its name, the other's stays
    anonymous and cannot be reused.
    """

    __slots__ = ("anonymous", "blocks", "chain", "copy", "filled", "last")

    def __init__(self, chain: bytes) -> None:
        self.chain = chain
        """Names of the sequence's full blocks, in order; blocks past its end have no name and cannot be reused."""
        self.blocks = 0
        self.filled = 0
        """Leading blocks that were full and got the chance of a name."""
        self.anonymous: list[int] = []
        """Those of the filled whose name another sequence's block has."""
        self.last: _Run | None = None
        """The run of the last filled block. None if that is anonymous, or there is none."""
        self.copy: _Run | None = None
        """Where the name of the last anonymous block was: the next is looked for there first."""

    @property
    def named(self) -> int:
        return self.filled - len(self.anonymous)

    @property
    def nameable(self) -> int:
        return len(self.chain) // NAME_BYTES


class BlockPool:
    """Blocks are free, idle (named, held by nobody, reusable until evicted) or held by sequences.

    A block with a name is the first of a run or comes right after the block before it in the same run, so that it is
    found by the names before it; `_runs` knows each run by its first name.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._idle = 0
        self._runs: dict[bytes, _Run] = {}
        self._idle_runs: OrderedDict[_Run, None] = OrderedDict()
        """In the order of their release. Of a run, the last block is evicted first."""

    @property
    def total(self) -> int:
        return self._total

    @property
    def available(self) -> int:
        """How many blocks can be taken now, evicting idle ones if need be."""
        return self._free + self._idle

    @property
    def held(self) -> int:
        return self._total - self._free - self._idle

    def matched(self, chain: bytes, limit: int) -> tuple[int, int]:
        """How many leading blocks, at most `limit`, are in the cache, and how many of these nobody holds: taking them
        lowers `available`."""
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
        """Give a sequence blocks without a name: free ones first, then the idle ones that were released longest ago."""
        assert count <= self.available, "allocated more blocks than are available"
        holding.blocks += count
        from_free = min(count, self._free)
        self._free -= from_free
        if count > from_free:
            self._evict(count - from_free)

    def publish(self, holding: Holding, full: int) -> None:
        """Name the blocks up to `full`, as far as they have names and no other held block is named so. An idle copy
        becomes free."""
        full = min(full, holding.nameable)
        while holding.filled < full:
            copy = self._copy_of_next(holding)
            if copy is None:
                self._name_until(holding, self._end_of_new(holding, full))
            elif copy.references:
                holding.anonymous.append(holding.filled)
                holding.filled += 1
                holding.last, holding.copy = None, copy
            else:
                self._take_out(copy, holding.filled)
                self._free += 1
                self._name_until(holding, holding.filled + 1)

    def publish_new(self, holding: Holding, full: int) -> None:
        """As `publish`, for blocks that are known to be new."""
        full = min(full, holding.nameable)
        if holding.filled < full:
            self._name_until(holding, full)

    def are_new(self, ends: list[tuple[Holding, int]]) -> bool:
        """Nobody would find a copy if all of these published up to there, whoever comes first."""
        firsts = set()
        for holding, full in ends:
            if holding.filled >= min(full, holding.nameable):
                continue
            if holding.filled and holding.last is None:  # to look for copies takes long, and most are new
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
                run.end = run.start  # whoever remembers it finds nothing in it
            else:
                idle.append(run)
        for run in reversed(idle):
            run.trim()
            self._idle_runs[run] = None
        holding.anonymous.clear()
        holding.blocks = holding.filled = 0
        holding.last = holding.copy = None

    def _runs_of(self, holding: Holding) -> list[_Run]:
        """Those that a sequence holds, in order."""
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
        """Forget the blocks that were released longest ago."""
        self._idle -= count
        while count:
            run = next(iter(self._idle_runs))
            evicted = min(count, run.end - run.start)
            count -= evicted
            if evicted == run.end - run.start:
                del self._idle_runs[run]
                del self._runs[run.head]
            run.end -= evicted

    def _cut(self, run: _Run, position: int) -> _Run:
        """Make the blocks before `position` a run of their own. That of an idle run is not queued: it is about to be
        held."""
        first = _Run(run.chain, run.base, run.start, position, run.references)
        self._runs[first.head] = first
        run.start = position
        self._runs[run.head] = run
        if not run.references:
            run.trim()
        return first

    def _copy_of_next(self, holding: Holding) -> _Run | None:
        """The run with the name that the next block to fill would get."""
        position = holding.filled
        copy = self._runs.get(_name(holding.chain, position))
        if copy is not None or not position or holding.last is not None:
            return copy  # the run of the block before is ours, and so ends with it
        near = holding.copy
        if near is not None and near.has(holding.chain, position - 1):
            return near if near.has(holding.chain, position) else None
        return self._search(holding.chain, position)

    def _search(self, chain: bytes, wanted: int) -> _Run | None:
        """The run with this block, also where blocks before it are no longer in the cache."""
        position = 0
        while position <= wanted:
            run = self._runs.get(_name(chain, position))
            end = position + 1 if run is None else run.common_end(chain, wanted + 1)
            if run is not None and end > wanted:
                return run
            position = end
        return None

    def _end_of_new(self, holding: Holding, full: int) -> int:
        """The first block after the next one, at most `full`, that has a copy; the next one itself if it begins a
        run."""
        position, full = holding.filled, min(full, holding.nameable)
        while position < full and _name(holding.chain, position) not in self._runs:
            position += 1
        return position

    def _name_until(self, holding: Holding, end: int) -> None:
        """Name blocks of which there is no copy: those after the first follow it in its run, so only a run that began
        with one of them could have held one."""
        start, last = holding.filled, holding.last
        if last is not None and last.references == 1:
            last.rename(holding.chain, end)
        else:
            last = _Run(holding.chain, 0, start, end, 1)
            self._runs[last.head] = last
        holding.last = last
        holding.filled = end

    def _take_out(self, run: _Run, position: int) -> None:
        """Forget one block of an idle run; the others keep their turn."""
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
        """Visits all idle runs: it takes a sequence whose block before is anonymous, while nobody holds that name."""
        self._runs[rest.head] = rest
        turns = [each for old in self._idle_runs for each in ((rest, old) if old is run else (old,))]
        self._idle_runs = OrderedDict.fromkeys(turns)


def common_names(one: bytes, other: bytes) -> int:
    """How many leading names two chains share; an equal name says that all names before it are equal."""
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
