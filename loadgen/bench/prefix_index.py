"""Measures the prefix index: time per prompt, memory per block, and its behaviour when it is full.

The reference beside it is a trie with one dict and one set of targets per block, without any bound. It prints figures
and judges none.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns  # noqa: TID251 - a bench measures
from typing import Protocol

from gateway.core.placement.prefix_chain import prefix_chain
from gateway.core.placement.prefix_index import PrefixIndex
from gateway.core.vocabulary import PREFIX_HASH_BYTES

_PROMPT_BYTES = 32 * 1024
_SYSTEM_PROMPT_SHARE = 4
"""Divisor of the prompt size: a system prompt is a quarter of a whole prompt."""
_SYSTEM_PROMPTS = 4
_TURNS = 6
_CONVERSATIONS = 400
_CONVERSATIONS_MANY = 20_000
_STAYS = 0.9
"""Probability that the next turn of a conversation goes to the same target as the turn before."""
_AVAILABLE = 0.9
_BYTES_MAX = 2**34
_TTL_NS = 2**62


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One figure, and the reference's value where it has one."""

    case: str
    figure: str
    value: float
    naive: float | None = None


@dataclass(frozen=True, slots=True)
class IndexCase:
    shape: str
    block_bytes: int
    targets: int
    conversations: int = _CONVERSATIONS

    def __str__(self) -> str:
        return f"{self.shape}_{self.conversations}_of_{self.blocks}_blocks_to_{self.targets}"

    @property
    def blocks(self) -> int:
        return _PROMPT_BYTES // self.block_bytes


@dataclass(frozen=True, slots=True)
class Sent:
    chain: bytes
    slot: int
    is_timed: bool
    """True for whole prompts; the earlier turns that lead to one only fill the index."""


class Index(Protocol):
    def match(self, chain: bytes) -> object: ...

    def insert(self, chain: bytes, slot: int, now_ns: int) -> None: ...


class Ours:
    def __init__(self, available: list[int], bytes_max: int = _BYTES_MAX) -> None:
        self.index = PrefixIndex(bytes_max, _TTL_NS)
        self.insert = self.index.insert
        self._available = sum(1 << slot for slot in available)

    def match(self, chain: bytes) -> object:
        return self.index.match(chain, self._available)


class _Block:
    __slots__ = ("children", "targets")

    def __init__(self) -> None:
        self.children: dict[bytes, _Block] = {}
        self.targets: set[int] = set()


class Naive:
    """Reference index with one trie node per block, which tracks no age and evicts nothing."""

    def __init__(self, available: list[int]) -> None:
        self._root = _Block()
        self._available = set(available)

    def match(self, chain: bytes) -> object:
        block, known = self._root, set[int]()
        for start in range(0, len(chain), PREFIX_HASH_BYTES):
            child = block.children.get(chain[start : start + PREFIX_HASH_BYTES])
            if child is None:
                return start // PREFIX_HASH_BYTES, known
            common = child.targets & self._available
            if not common:
                return start // PREFIX_HASH_BYTES, known
            block, known = child, common
        return len(chain) // PREFIX_HASH_BYTES, known

    def insert(self, chain: bytes, slot: int, _now_ns: int) -> None:
        block = self._root
        for start in range(0, len(chain), PREFIX_HASH_BYTES):
            key = chain[start : start + PREFIX_HASH_BYTES]
            child = block.children.get(key)
            if child is None:
                child = block.children[key] = _Block()
            child.targets.add(slot)
            block = child


def population(case: IndexCase) -> Iterator[Sent]:
    match case.shape:
        case "disjoint":
            return _disjoint(case)
        case _:
            return _conversations(case)


def _disjoint(case: IndexCase) -> Iterator[Sent]:
    rng = random.Random(1)
    for _ in range(case.conversations):
        yield Sent(rng.randbytes(case.blocks * PREFIX_HASH_BYTES), rng.randrange(case.targets), is_timed=True)


def _conversations(case: IndexCase) -> Iterator[Sent]:
    """Conversations that start from one of a few system prompts and take turns; prompts of the last turn are timed."""
    rng = random.Random(1)
    system_blocks = case.blocks // _SYSTEM_PROMPT_SHARE
    systems = [rng.randbytes(system_blocks * PREFIX_HASH_BYTES) for _ in range(_SYSTEM_PROMPTS)]
    turn_bytes = (case.blocks - system_blocks) // _TURNS * PREFIX_HASH_BYTES
    chains = [rng.choice(systems) for _ in range(case.conversations)]
    slots = [rng.randrange(case.targets) for _ in chains]
    for turn in range(_TURNS):
        for number in range(case.conversations):
            chains[number] += rng.randbytes(turn_bytes)
            if rng.random() > _STAYS:
                slots[number] = rng.randrange(case.targets)
            yield Sent(chains[number], slots[number], is_timed=turn == _TURNS - 1)


def available_of(case: IndexCase) -> list[int]:
    rng = random.Random(2)
    return sorted(rng.sample(range(case.targets), int(case.targets * _AVAILABLE)))


@dataclass(frozen=True, slots=True)
class IndexTimes:
    match_us: float
    insert_us: float
    both_us: float


def timed(case: IndexCase, index: Index) -> IndexTimes:
    """Medians over whole prompts, each matched and then inserted, as a placement does."""
    matches, inserts = list[int](), list[int]()
    for now_ns, sent in enumerate(population(case)):
        start = perf_counter_ns()
        index.match(sent.chain)
        middle = perf_counter_ns()
        index.insert(sent.chain, sent.slot, now_ns)
        if sent.is_timed:
            inserts.append(perf_counter_ns() - middle)
            matches.append(middle - start)
    both = [match + insert for match, insert in zip(matches, inserts, strict=True)]
    return IndexTimes(median(matches) / 1000, median(inserts) / 1000, median(both) / 1000)


def allocated_bytes(case: IndexCase, make: Callable[[], Index]) -> int:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = make()
    for now_ns, sent in enumerate(population(case)):
        index.insert(sent.chain, sent.slot, now_ns)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return allocated


def beside_naive(case: IndexCase) -> Iterator[IndexRow]:
    available = available_of(case)
    ours = Ours(available)
    mine, theirs = timed(case, ours), timed(case, Naive(available))
    yield IndexRow(str(case), "match_us", mine.match_us, theirs.match_us)
    yield IndexRow(str(case), "insert_us", mine.insert_us, theirs.insert_us)
    yield IndexRow(str(case), "both_us", mine.both_us, theirs.both_us)
    blocks = ours.index.blocks
    our_bytes = allocated_bytes(case, lambda: Ours(available))
    naive_bytes = allocated_bytes(case, lambda: Naive(available))
    yield IndexRow(str(case), "memory_per_block_bytes", our_bytes / blocks, naive_bytes / blocks)
    yield IndexRow(str(case), "estimate_to_allocated_ratio", ours.index.size_bytes / our_bytes)


def alone(case: IndexCase) -> Iterator[IndexRow]:
    ours = Ours(available_of(case))
    times = timed(case, ours)
    yield IndexRow(str(case), "match_us", times.match_us)
    yield IndexRow(str(case), "insert_us", times.insert_us)
    yield IndexRow(str(case), "both_us", times.both_us)
    yield IndexRow(str(case), "size_bytes", ours.index.size_bytes)
    yield IndexRow(str(case), "memory_per_block_bytes", ours.index.size_bytes / ours.index.blocks)


def at_its_bound(case: IndexCase) -> Iterator[IndexRow]:
    """Insert the same prompts into an index with room for all of them, and into one with room for a tenth."""
    available = available_of(case)
    roomy = Ours(available)
    roomy_us = timed(case, roomy).insert_us
    bytes_max = roomy.index.size_bytes // 10
    full = Ours(available, bytes_max)
    full_us = timed(case, full).insert_us
    allocated = allocated_bytes(case, lambda: Ours(available, bytes_max))
    yield IndexRow(f"full_{case}", "insert_when_full_us", full_us)
    yield IndexRow(f"full_{case}", "insert_when_full_to_with_room_ratio", full_us / roomy_us)
    yield IndexRow(f"full_{case}", "largest_size_to_bound_ratio", _largest_size(case, bytes_max) / bytes_max)
    yield IndexRow(f"full_{case}", "allocated_to_bound_ratio", allocated / bytes_max)


def _largest_size(case: IndexCase, bytes_max: int) -> int:
    index, largest = PrefixIndex(bytes_max, _TTL_NS), 0
    for now_ns, sent in enumerate(population(case)):
        index.insert(sent.chain, sent.slot, now_ns)
        largest = max(largest, index.size_bytes)
    return largest


def hashing(block_bytes: int) -> IndexRow:
    """Time from a prompt's bytes to its chain, which each request pays once before matching."""
    text = random.Random(3).randbytes(_PROMPT_BYTES)
    times = list[int]()
    for _ in range(500):
        start = perf_counter_ns()
        prefix_chain(b"salt", [text[:1000], memoryview(text)[1000:]], block_bytes=block_bytes, blocks_max=4096)
        times.append(perf_counter_ns() - start)
    return IndexRow("chain", f"of_{_PROMPT_BYTES // block_bytes}_blocks_us", median(times) / 1000)


def measure() -> list[IndexRow]:
    """Every figure. The values of one row come from the same run on the same machine."""
    rows = [hashing(block_bytes) for block_bytes in (64, 128)]
    for shape in ("conversations", "disjoint"):
        for block_bytes in (128, 64):
            for targets in (64, 4096):
                rows += beside_naive(IndexCase(shape, block_bytes, targets))
    for targets in (64, 4096):
        rows += alone(IndexCase("conversations", 128, targets, _CONVERSATIONS_MANY))
        rows += at_its_bound(IndexCase("conversations", 128, targets, _CONVERSATIONS_MANY // 10))
    return rows


def run() -> dict[str, object]:
    """Figures by name, for `nightside bench`."""
    figures: dict[str, object] = {}
    for row in measure():
        figures[f"{row.case}_{row.figure}"] = row.value
        if row.naive is not None:
            figures[f"{row.case}_naive_{row.figure}"] = row.naive
            figures[f"{row.case}_naive_to_ours_{row.figure}_ratio"] = row.naive / row.value
    return figures
