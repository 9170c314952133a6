"""The pool does, run by run, what a naive pool of single blocks does."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from loadgen.engine.blocks import NAME_BYTES, BlockPool, Holding, common_names, packed
from tests.support.names import names_in
from tests.support.nightly import examples

BLOCKS = 12


def chain(labels: str) -> bytes:
    """Names of blocks with these contents."""
    link, names = 7, []
    for label in labels:
        link = xxh3_64_intdigest(label.encode(), link)
        names.append(link)
    return packed(names)


def hold(pool: BlockPool, labels: str) -> Holding:
    """Holding of a sequence that arrived, reused the cached blocks, and computed the rest."""
    holding = Holding(chain(labels))
    pool.reuse(holding, pool.matched(holding.chain, len(labels))[0])
    pool.allocate(holding, len(labels) - holding.blocks)
    pool.publish(holding, len(labels))
    return holding


def two_at_once(pool: BlockPool, labels: str) -> tuple[Holding, Holding]:
    """Holdings of two sequences that arrived together: neither finds a cached block, and both compute all of them."""
    first, second = Holding(chain(labels)), Holding(chain(labels))
    for holding in (first, second):
        pool.allocate(holding, len(labels))
    return first, second


def cached(pool: BlockPool, labels: str) -> int:
    return pool.matched(chain(labels), len(labels))[0]


def test_blocks_are_evicted_by_last_use_and_the_end_of_a_chain_first() -> None:
    pool = BlockPool(4)
    for labels in ("ab", "cd", "a"):
        pool.release(hold(pool, labels))
    kept = []
    for _ in range(4):
        kept.append((cached(pool, "ab"), cached(pool, "cd")))
        pool.allocate(Holding(b""), 1)

    assert kept == [(2, 2), (1, 2), (1, 1), (1, 0)]


def test_what_one_holds_nobody_evicts_and_a_second_holder_keeps() -> None:
    pool = BlockPool(4)
    one, other = hold(pool, "abc"), hold(pool, "ab")
    assert pool.held == 3
    pool.release(one)
    pool.allocate(Holding(b""), 2)
    assert (cached(pool, "abc"), pool.available) == (2, 0)
    pool.release(other)
    assert pool.available == 2


def test_a_block_that_two_compute_at_once_is_named_by_the_first() -> None:
    pool = BlockPool(8)
    first, second = two_at_once(pool, "ab")
    pool.publish(first, 1)
    pool.publish(second, 2)
    pool.publish(first, 2)
    assert (first.anonymous, second.anonymous) == ([1], [0])
    pool.release(first)
    assert cached(pool, "ab") == 2
    assert pool.matched(first.chain, 2) == (2, 1), "the second still holds its own"


def test_a_block_without_the_block_before_it_is_not_found_until_that_is_back() -> None:
    pool = BlockPool(4)
    first, second = two_at_once(pool, "ab")
    pool.publish(first, 1)
    pool.publish(second, 2)
    pool.release(first)
    pool.allocate(Holding(b""), 2)
    assert cached(pool, "ab") == 0
    pool.release(second)
    pool.release(hold(pool, "a"))
    assert cached(pool, "ab") == 2


def test_a_block_is_taken_out_of_the_middle_of_what_another_left() -> None:
    """The second sequence computed its first two blocks while the first held their names."""
    pool = BlockPool(8)
    first, second = two_at_once(pool, "abcd")
    pool.publish(first, 4)
    pool.publish(second, 2)
    pool.release(first)
    pool.publish(second, 3)
    assert (second.anonymous, pool.held) == ([0, 1], 4)
    pool.allocate(Holding(b""), 1)  # the last free one: an idle copy became free
    kept = []
    for _ in range(3):
        kept.append(cached(pool, "abcd"))
        pool.allocate(Holding(b""), 1)
    assert kept == [4, 3, 1]


def test_a_block_is_taken_out_of_the_end_of_what_another_left() -> None:
    pool = BlockPool(8)
    first, second = two_at_once(pool, "abcd")
    pool.publish(first, 3)
    pool.publish(second, 2)
    pool.release(first)
    pool.publish(second, 3)
    assert pool.matched(first.chain, 4) == (3, 2)


def test_a_copy_is_found_behind_blocks_that_are_gone() -> None:
    pool = BlockPool(10)
    first, second, third = Holding(chain("ab")), Holding(chain("abcd")), Holding(chain("abcd"))
    pool.allocate(first, 2)
    pool.publish(first, 2)
    for holding, full in ((second, 4), (third, 2)):
        pool.allocate(holding, 4)
        pool.publish(holding, full)
    pool.release(first)
    pool.allocate(Holding(b""), 2)
    assert cached(pool, "ab") == 0
    pool.publish(third, 4)
    assert (second.anonymous, third.anonymous) == ([0, 1], [0, 1, 2, 3])


def test_what_is_idle_keeps_no_names_but_its_own() -> None:
    """A hundred short questions about one long text, each with the names of the whole text."""
    pool = BlockPool(1_000)
    for number in range(100):
        pool.release(hold(pool, "t" * 500 + chr(number) * 3))
    chains = {id(run.chain): run.chain for run in pool._idle_runs}
    assert sum(map(len, chains.values())) <= 1_000 * NAME_BYTES


def test_a_second_one_that_computes_the_same_searches_once() -> None:
    pool = BlockPool(8)
    first, second = two_at_once(pool, "abcd")
    for full in range(1, 5):
        pool.publish(first, full)
        pool.publish(second, full)
        assert second.copy is first.last
    assert second.anonymous == [0, 1, 2, 3]


def test_where_a_copy_was_something_else_may_be_now() -> None:
    pool = BlockPool(16)
    first, second = two_at_once(pool, "abcd")
    for holding in (first, second):
        pool.publish(holding, 3)
    pool.release(first)
    other = Holding(b"")
    pool.allocate(other, pool.available - 1)
    assert cached(pool, "abc") == 1
    pool.release(other)
    held = [hold(pool, "axy"), hold(pool, "abcd")]
    pool.publish(second, 4)
    assert second.anonymous == [0, 1, 2, 3]
    assert [holding.anonymous for holding in held] == [[], []]


def test_a_copy_is_found_in_what_two_runs_became() -> None:
    pool = BlockPool(16)
    shared = hold(pool, "ab")
    first, second = hold(pool, "abc"), Holding(chain("abcd"))
    pool.allocate(second, 4)
    pool.publish(second, 3)
    pool.release(shared)
    pool.release(first)
    hold(pool, "abcd")
    pool.publish(second, 4)
    assert second.anonymous == [0, 1, 2, 3]


@dataclass
class NaiveHolding:
    names: list[bytes]
    taken: list[bytes] = field(default_factory=list)
    filled: int = 0
    blocks: int = 0


@dataclass
class NaivePool:
    """Pool of single blocks: how often each is held, and the idle ones in the order of their release."""

    free: int
    held: dict[bytes, int] = field(default_factory=dict)
    idle: list[bytes] = field(default_factory=list)

    def matched(self, names: list[bytes]) -> tuple[int, int]:
        count = 0
        while count < len(names) and (names[count] in self.held or names[count] in self.idle):
            count += 1
        return count, sum(name in self.idle for name in names[:count])

    def reuse(self, holding: NaiveHolding, count: int) -> None:
        for name in holding.names[:count]:
            if name in self.idle:
                self.idle.remove(name)
            self.held[name] = self.held.get(name, 0) + 1
        holding.taken = holding.names[:count]
        holding.filled = holding.blocks = count

    def allocate(self, holding: NaiveHolding, count: int) -> None:
        holding.blocks += count
        for _ in range(count):
            if self.free:
                self.free -= 1
            else:
                self.idle.pop(0)

    def publish(self, holding: NaiveHolding, full: int) -> None:
        for name in holding.names[holding.filled : full]:
            holding.filled += 1
            if name in self.held:
                continue
            if name in self.idle:
                self.idle.remove(name)
                self.free += 1
            self.held[name] = 1
            holding.taken.append(name)

    def are_new(self, ends: list[tuple[NaiveHolding, int]]) -> bool:
        names = [name for holding, full in ends for name in holding.names[holding.filled : full]]
        return len(names) == len(set(names)) and not any(name in self.held or name in self.idle for name in names)

    def release(self, holding: NaiveHolding) -> None:
        self.free += holding.blocks - len(holding.taken)
        for name in reversed(holding.taken):
            self.held[name] -= 1
            if not self.held[name]:
                del self.held[name]
                self.idle.append(name)


@dataclass(frozen=True)
class Come:
    labels: str
    limit: int


@dataclass(frozen=True)
class Grow:
    who: int
    blocks: int
    lag: int
    """Number of the sequence's blocks that are not full yet."""


@dataclass(frozen=True)
class GrowTogether:
    blocks: int


@dataclass(frozen=True)
class Leave:
    who: int


Action = Come | Grow | GrowTogether | Leave
labels = st.one_of(st.text("ab", max_size=BLOCKS), st.integers(1, 6).map(lambda length: "a" * length))
who = st.integers(0, 3)
actions = st.lists(
    st.one_of(
        st.builds(Come, labels, st.integers(0, BLOCKS)),
        st.builds(Grow, who, st.integers(0, 4), st.integers(0, 4)),
        st.builds(GrowTogether, st.integers(1, 3)),
        st.builds(Leave, who),
    ),
    max_size=40,
)


class Both:
    """The pool and the naive one, given the same actions."""

    def __init__(self) -> None:
        self.pool = BlockPool(BLOCKS)
        self.naive = NaivePool(BLOCKS)
        self.holders: list[tuple[Holding, NaiveHolding]] = []

    def act(self, action: Action) -> None:
        match action:
            case Come():
                self.come(action)
            case Grow() if self.holders:
                holder = self.holders[action.who % len(self.holders)]
                self.grow(holder, action.blocks, action.lag)
            case GrowTogether():
                self.grow_together(action.blocks)
            case Leave() if self.holders:
                holding, naive = self.holders.pop(action.who % len(self.holders))
                self.pool.release(holding)
                self.naive.release(naive)

    def come(self, action: Come) -> None:
        holding = Holding(chain(action.labels))
        naive = NaiveHolding(names_in(holding.chain))
        found = self.pool.matched(holding.chain, action.limit)
        assert found == self.naive.matched(naive.names[: action.limit])
        self.pool.reuse(holding, found[0])
        self.naive.reuse(naive, found[0])
        self.holders.append((holding, naive))

    def grow(self, holder: tuple[Holding, NaiveHolding], blocks: int, lag: int) -> None:
        holding, naive = holder
        blocks = min(blocks, self.pool.available)
        self.pool.allocate(holding, blocks)
        self.naive.allocate(naive, blocks)
        full = max(holding.filled, holding.blocks - lag)
        self.pool.publish(holding, full)
        self.naive.publish(naive, full)

    def grow_together(self, blocks: int) -> None:
        """Grow all sequences as several iterations at once do, where all new blocks have new names."""
        if blocks * len(self.holders) > self.pool.available:
            return
        ends = [(holding, holding.blocks + blocks) for holding, _ in self.holders]
        if not self.pool.are_new(ends):
            return
        assert self.naive.are_new([(naive, naive.blocks + blocks) for _, naive in self.holders])
        for holding, naive in self.holders:
            self.pool.allocate(holding, blocks)
            self.naive.allocate(naive, blocks)
            self.pool.publish_new(holding, holding.blocks)
            self.naive.publish(naive, naive.blocks)

    def check(self) -> None:
        assert self.pool.available == self.naive.free + len(self.naive.idle)
        assert self.pool.held == BLOCKS - self.pool.available
        for holding, naive in self.holders:
            assert (holding.blocks, holding.named) == (naive.blocks, len(naive.taken))
        assert self.idle_names() == self.naive.idle

    def idle_names(self) -> list[bytes]:
        """Names of idle blocks, in the order in which they would be evicted."""
        return [run.name(at) for run in self.pool._idle_runs for at in reversed(range(run.start, run.end))]


@settings(max_examples=examples(few=100, night=1_000))
@given(actions)
def test_runs_do_what_single_blocks_do(todo: list[Action]) -> None:
    both = Both()
    for action in todo:
        both.act(action)
        both.check()
    while both.holders:
        both.act(Leave(0))
        both.check()
    assert both.pool.held == 0


@given(st.lists(labels, min_size=1, max_size=4), st.integers(1, 3))
def test_blocks_nobody_else_names_are_known_to_be_new(texts: list[str], blocks: int) -> None:
    """The pool may report False for a sequence after an anonymous block, where certainty would take long."""
    both = Both()
    for text in texts:
        both.act(Come(text, 0))
    ends = [(holding, blocks) for holding, _ in both.holders]
    assert both.pool.are_new(ends) == both.naive.are_new([(naive, blocks) for _, naive in both.holders])


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_two_chains_share_the_names_of_their_common_beginning(one: str, other: str) -> None:
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common_names(chain(one), chain(other)) == common
