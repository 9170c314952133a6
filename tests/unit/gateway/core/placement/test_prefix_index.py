from __future__ import annotations

import gc
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from gateway.core.block_sizes import EVEN_BLOCKS
from gateway.core.placement.index_sizes import EMPTY_SPARED_BYTES, END_BYTES
from gateway.core.placement.prefix_index import Match, PrefixIndex
from gateway.core.vocabulary import PREFIX_HASH_BYTES
from tests.support.nightly import first_of

ROOMY_BYTES = 2**30
TTL_NS = 100
EVERYBODY = (1 << 64) - 1
PROBE = """
import random
from gateway.core.placement.prefix_index import PrefixIndex
rng, index, sent = random.Random(5), PrefixIndex(40_000, 10**9), []
for now_ns in range(600):
    sent.append(rng.choice([b"", *sent])[:160] + rng.randbytes(8 * rng.randrange(1, 9)))
    index.insert(sent[-1], rng.randrange(9), now_ns)
matches = [index.match(chain, 0b110110110) for chain in sent]
print([(match.blocks, match.mask) for match in matches], index.records, index.size_bytes)
"""


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(ROOMY_BYTES, TTL_NS)


def chain_of(text: str) -> bytes:
    """One made-up hash per letter, which stands for all letters up to it."""
    return b"".join(random.Random(text[:length]).randbytes(8) for length in range(1, len(text) + 1))


def insert(index: PrefixIndex, text: str, slot: int, now_ns: int = 0) -> None:
    index.insert(chain_of(text), slot, now_ns)
    assert index.check() == []


def match(index: PrefixIndex, text: str, available: int = EVERYBODY) -> tuple[int, int]:
    """Return the number of blocks known, and the mask of the targets that know them."""
    return found(index.match(chain_of(text), available))


def found(match: Match) -> tuple[int, int]:
    return match.blocks, match.mask


def test_an_empty_index_knows_nobody(index: PrefixIndex) -> None:
    assert match(index, "hello") == (0, 0)
    assert found(index.match(b"", EVERYBODY)) == (0, 0)
    assert (index.size_bytes, index.blocks, index.records, index.nodes) == (0, 0, 0, 0)


def test_what_was_sent_is_found_along_the_whole_chain(index: PrefixIndex) -> None:
    insert(index, "hello", 3)
    assert match(index, "hello") == (5, 0b1000)
    assert match(index, "hel") == (3, 0b1000)
    assert match(index, "hello world") == (5, 0b1000)
    assert match(index, "help") == (3, 0b1000)
    assert match(index, "yellow") == (0, 0)


def test_the_longest_match_of_the_available_wins(index: PrefixIndex) -> None:
    insert(index, "hello world", 1)
    insert(index, "hello there", 2)
    insert(index, "hello", 3)
    assert match(index, "hello world!") == (11, 0b0010)
    assert match(index, "hello world!", 0b1100) == (6, 0b0100)
    assert match(index, "hello", 0b1110) == (5, 0b1110)
    assert match(index, "hello world!", 0b10000) == (0, 0)


def test_a_shared_run_is_stored_once(index: PrefixIndex) -> None:
    for slot, tail in enumerate("abcdefgh"):
        insert(index, "system prompt " + tail, slot)
    assert index.blocks == 14 + 8
    assert index.nodes == 1 + 8
    assert index.records == 8 + 8


def test_nothing_new_is_stored_for_what_is_known(index: PrefixIndex) -> None:
    insert(index, "hello", 1)
    before = (index.size_bytes, index.blocks, index.records, index.nodes)
    insert(index, "hello", 1, now_ns=1)
    assert (index.size_bytes, index.blocks, index.records, index.nodes) == before


def test_an_empty_chain_leaves_no_trace(index: PrefixIndex) -> None:
    index.insert(b"", 1, 0)
    assert (index.size_bytes, index.nodes) == (0, 0)


def room_for(slots: list[int]) -> int:
    """Bytes that one chain of 8 blocks takes for each of these slots."""
    index = PrefixIndex(ROOMY_BYTES, TTL_NS)
    for number, slot in enumerate(slots):
        insert(index, f"{number}-------", slot)
    return index.size_bytes


@pytest.mark.parametrize("slots", [[0, 0, 0], [0, 1, 2]])
def test_the_earliest_refreshed_goes_first(slots: list[int]) -> None:
    index = PrefixIndex(room_for(slots), TTL_NS)
    for number, slot in enumerate(slots):
        insert(index, f"{number}-------", slot, now_ns=number)
    insert(index, "0-------", slots[0], now_ns=3)
    insert(index, "3-------", slots[1], now_ns=4)
    assert [match(index, f"{number}-------")[0] for number in range(4)] == [8, 0, 8, 8]


def test_the_deepest_run_goes_first() -> None:
    roomy = PrefixIndex(ROOMY_BYTES, TTL_NS)
    for now_ns, text in enumerate(["stem", "stem-and-leaf", "x"]):
        insert(roomy, text, 0, now_ns)
    index = PrefixIndex(roomy.size_bytes - 1, TTL_NS)
    depths = []
    for now_ns, text in enumerate(["stem", "stem-and-leaf", "x", "y"]):
        insert(index, text, 0, now_ns)
        depths.append(match(index, "stem-and-leaf")[0])
    assert depths == [4, 13, 4, 0]
    assert match(index, "x")[0] == match(index, "y")[0] == 1


def test_a_refreshed_branch_keeps_its_stem_and_loses_its_stale_twin() -> None:
    index = PrefixIndex(room_for([0, 1, 2]), TTL_NS)
    insert(index, "stem-old", 0, now_ns=0)
    insert(index, "stem-new", 0, now_ns=1)
    for now_ns in range(2, 12):
        insert(index, f"{now_ns:02}------"[:8], 1, now_ns)
        insert(index, "stem-new", 0, now_ns)
    assert match(index, "stem-new") == (8, 1)
    assert match(index, "stem-old") == (5, 1)


def test_the_size_never_passes_its_bound() -> None:
    rng, index = random.Random(1), PrefixIndex(20_000, TTL_NS)
    for now_ns in range(500):
        index.insert(rng.randbytes(8 * rng.randrange(1, 40)), rng.randrange(70), now_ns)
        assert index.size_bytes <= 20_000
    assert index.size_bytes > 15_000
    assert index.check() == []


def test_a_chain_that_could_never_fit_costs_nobody_anything() -> None:
    index = PrefixIndex(room_for([0, 1]), TTL_NS)
    insert(index, "0-------", 0)
    insert(index, "x" * 1000, 1)
    assert match(index, "0-------")[0] == 8
    assert match(index, "x" * 1000)[0] == 0


def test_a_chain_as_large_as_the_index_evicts_all_others() -> None:
    index = PrefixIndex(4000, TTL_NS)
    for number in range(4):
        insert(index, f"{number}---", number)
    index.insert(random.Random(1).randbytes(8 * 350), 9, 1)
    assert found(index.match(random.Random(1).randbytes(8 * 350), EVERYBODY)) == (350, 1 << 9)
    assert index.nodes == 1
    assert index.check() == []


def test_records_expire_when_nothing_refreshed_them(index: PrefixIndex) -> None:
    insert(index, "hello world", 1, now_ns=0)
    insert(index, "hello", 1, now_ns=50)
    index.expire(TTL_NS)
    assert match(index, "hello world")[0] == 11
    index.expire(TTL_NS + 1)
    assert match(index, "hello world")[0] == 5
    index.expire(TTL_NS + 51)
    assert (index.size_bytes, index.nodes, index.records) == (0, 0, 0)


def test_a_refused_continuation_takes_back_only_what_it_added(index: PrefixIndex) -> None:
    insert(index, "turn one", 1)
    insert(index, "turn one, turn two", 1, now_ns=1)
    insert(index, "turn one, turn two", 2, now_ns=2)
    index.retract(chain_of("turn one, turn two"), 1, 8)
    assert index.check() == []
    assert match(index, "turn one, turn two", 0b010) == (8, 0b010)
    assert match(index, "turn one, turn two", 0b100) == (18, 0b100)


def test_retracting_takes_back_what_lies_below_as_well(index: PrefixIndex) -> None:
    insert(index, "abcdef", 1)
    insert(index, "abcdxy", 1)
    insert(index, "abzz", 1)
    index.retract(chain_of("abcd"), 1, 3)
    assert index.check() == []
    assert match(index, "abcdef")[0] == 3
    assert match(index, "abcdxy")[0] == 3
    assert match(index, "abzz")[0] == 4


@pytest.mark.parametrize(
    ("text", "slot", "keep"), [("abcdef", 2, 0), ("xyz", 1, 0), ("abcdef", 1, 6), ("abcx", 1, 3), ("abc", 1, 3)]
)
def test_retracting_what_is_not_there_changes_nothing(index: PrefixIndex, text: str, slot: int, keep: int) -> None:
    insert(index, "abcdef", 1)
    index.retract(chain_of(text), slot, keep)
    assert index.check() == []
    assert match(index, "abcdef") == (6, 0b10)
    assert index.nodes == 1


def test_retracting_for_a_slot_that_was_never_there_splits_nothing(index: PrefixIndex) -> None:
    insert(index, "abcdef", 1)
    insert(index, "ab", 2)
    before = index.nodes
    index.retract(chain_of("abcdef"), 2, 4)
    assert index.nodes == before


def test_what_was_not_taken_is_not_known_and_what_others_sent_stays(index: PrefixIndex) -> None:
    insert(index, "turn one", 1)
    insert(index, "turn one, turn two", 1, now_ns=1)
    insert(index, "turn one, turn too", 1, now_ns=2)
    insert(index, "turn one, turn two", 2, now_ns=2)
    index.withdraw(chain_of("turn one, turn two"), 1, 8)
    assert index.check() == []
    assert match(index, "turn one, turn two", 0b010) == (16, 0b010), "as far as the third one has it"
    assert match(index, "turn one, turn too", 0b010) == (18, 0b010)
    assert match(index, "turn one, turn two", 0b100) == (18, 0b100)
    index.withdraw(chain_of("turn one, turn too"), 1, 16)
    assert match(index, "turn one, turn too", 0b010) == (16, 0b010), "so much it knew before"


def test_what_was_not_taken_leaves_nothing_behind_where_nothing_was(index: PrefixIndex) -> None:
    insert(index, "abc", 1)
    index.withdraw(chain_of("abc"), 1, 0)
    assert index.check() == []
    assert (match(index, "abc")[0], index.nodes) == (0, 0)
    insert(index, "abc", 1)
    insert(index, "abcdef", 1)
    index.withdraw(chain_of("abc"), 1, 0)
    assert match(index, "abcdef")[0] == 6, "a later chain goes on from there"
    for text, slot, keep in (("abcdef", 2, 0), ("abcdef", 1, 6), ("abcx", 1, 3), ("ab", 1, 0)):
        index.withdraw(chain_of(text), slot, keep)
        assert index.check() == []
        assert match(index, "abcdef")[0] == 6


def test_a_strange_chain_takes_back_nothing_of_other_prompts(index: PrefixIndex) -> None:
    insert(index, "ab", 1)
    insert(index, "xyz", 1)
    index.retract(chain_of("ab") + chain_of("xyz"), 1, 2)
    assert match(index, "xyz") == (3, 0b10)


def test_a_removed_target_is_forgotten_and_its_slot_can_be_used_again(index: PrefixIndex) -> None:
    insert(index, "hello world", 1)
    insert(index, "hello there", 2)
    index.remove_target(1)
    index.remove_target(7)
    assert index.check() == []
    assert match(index, "hello world") == (6, 0b100)
    assert match(index, "hello world", 0b010) == (0, 0)
    insert(index, "hello you", 1, now_ns=1)
    assert match(index, "hello you", 0b010) == (9, 0b010)


def test_splitting_what_thousands_know_keeps_them_all(index: PrefixIndex) -> None:
    everybody = (1 << 4096) - 1
    for slot in range(4096):
        index.insert(chain_of("system prompt"), slot, 0)
    index.insert(chain_of("system date"), 7, 1)
    assert match(index, "system prompt", everybody) == (13, everybody)
    assert match(index, "system", everybody) == (6, everybody)
    assert match(index, "system date", everybody) == (11, 1 << 7)
    assert index.records == 2 * 4096 + 1


def test_a_lone_target_costs_the_same_at_any_slot() -> None:
    sizes = []
    for slot in (0, 4000):
        index = PrefixIndex(ROOMY_BYTES, TTL_NS)
        for number in range(200):
            index.insert(random.Random(number).randbytes(80), slot, 0)
        sizes.append(index.size_bytes)
    assert sizes[1] - sizes[0] < 600


def test_time_never_runs_backwards(index: PrefixIndex) -> None:
    insert(index, "hello", 1, now_ns=5)
    with pytest.raises(AssertionError, match="backwards"):
        index.insert(chain_of("hello"), 1, 4)
    with pytest.raises(AssertionError, match="backwards"):
        index.expire(4)


def test_a_chain_is_whole_hashes(index: PrefixIndex) -> None:
    with pytest.raises(AssertionError, match="whole hashes"):
        index.insert(b"1234567", 1, 0)


def test_the_story_does_not_depend_on_how_bytes_hash() -> None:
    stories = {
        subprocess.run(
            [sys.executable, "-c", PROBE],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(stories) == 1
    assert "(20, " in stories.pop()


# Checker of the index


def spoil_subset(index: PrefixIndex) -> None:
    next(node for node in index._nodes.values() if node.first_child is None).mask |= 1


def spoil_empty_node(index: PrefixIndex) -> None:
    next(node for node in index._nodes.values() if node.first_child is None).mask = 0


def spoil_supports(index: PrefixIndex) -> None:
    books = index._books[1]
    books.spare_supports[next(iter(books.ends))] = 1


def spoil_order(index: PrefixIndex) -> None:
    index._books[1].ends.move_to_end(next(iter(index._books[1].ends)))


def spoil_queue(index: PrefixIndex) -> None:
    index._queue.append(index._queue[0])


def spoil_links(index: PrefixIndex) -> None:
    index._root.first_child = None


def spoil_parent(index: PrefixIndex) -> None:
    del index._nodes[chain_of("h")]


def spoil_shared_int(index: PrefixIndex) -> None:
    insert(index, "yonder", 70, now_ns=3)
    node = index._nodes[chain_of("y")]
    node.mask = int(str(node.mask))  # equal, but another int object


def spoil_sizes(index: PrefixIndex) -> None:
    index._bytes -= 1


def spoil_bound(index: PrefixIndex) -> None:
    index._bytes_max = 10


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_subset,
        spoil_empty_node,
        spoil_supports,
        spoil_order,
        spoil_queue,
        spoil_links,
        spoil_parent,
        spoil_shared_int,
        spoil_sizes,
        spoil_bound,
    ],
)
def test_the_checker_sees(index: PrefixIndex, spoil: Callable[[PrefixIndex], None]) -> None:
    insert(index, "hello", 0, now_ns=0)
    insert(index, "hello world", 1, now_ns=1)
    insert(index, "hello there", 1, now_ns=2)
    spoil(index)
    assert index.check() != []


# Accuracy of the size


def conversations(rng: random.Random, slots: int) -> Iterator[tuple[bytes, int]]:
    sent = [(rng.randbytes(8 * 40), rng.randrange(slots))] * 400
    for _ in range(5):
        sent = [(chain + rng.randbytes(8 * 12), slot) for chain, slot in sent]
        yield from sent


def strangers(rng: random.Random, slots: int) -> Iterator[tuple[bytes, int]]:
    for _ in range(2000):
        yield rng.randbytes(8 * 16), rng.randrange(slots)


def one_prompt_for_all(rng: random.Random, slots: int) -> Iterator[tuple[bytes, int]]:
    prompt = rng.randbytes(8 * 50)
    for number in range(2000):
        yield prompt[: 8 * rng.randrange(1, 50)] + rng.randbytes(8 * 2), number % slots


def filled(
    shape: Callable[[random.Random, int], Iterator[tuple[bytes, int]]], slots: int, bytes_max: int
) -> PrefixIndex:
    index = PrefixIndex(bytes_max, TTL_NS)
    for chain, slot in shape(random.Random(1), slots):
        index.insert(chain, slot, 0)
    return index


@pytest.mark.parametrize("bytes_max", [ROOMY_BYTES, 300_000])
@pytest.mark.parametrize("slots", first_of([1500, 1, 64]))
@pytest.mark.parametrize("shape", [conversations, strangers, one_prompt_for_all])
def test_the_size_is_about_what_python_allocates(
    shape: Callable[[random.Random, int], Iterator[tuple[bytes, int]]], slots: int, bytes_max: int
) -> None:
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    index = filled(shape, slots, bytes_max)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 < index.size_bytes / allocated < 1.3


class TestBooksOfOneSlot:
    """Queries that the model of a replica's cache makes to its index."""

    def test_a_slot_is_bounded_by_forgetting_its_earliest_chains(self, index: PrefixIndex) -> None:
        for now_ns, text in enumerate(["first", "second", "third"]):
            insert(index, text, 1, now_ns)
        insert(index, "first", 2, now_ns=3)
        assert index.even_blocks_of(1) == 5 + 6 + 5
        index.bound(1, 11)
        assert index.check() == []
        assert index.even_blocks_of(1) == 11
        assert [match(index, text, 0b10)[0] for text in ("first", "second", "third")] == [0, 6, 5]
        assert match(index, "first", 0b100)[0] == 5, "others keep theirs"

    def test_what_others_still_need_of_a_chain_stays(self, index: PrefixIndex) -> None:
        insert(index, "stem-old", 1, now_ns=0)
        insert(index, "stem-new", 1, now_ns=1)
        index.bound(1, 8)
        assert index.check() == []
        assert (match(index, "stem-old")[0], match(index, "stem-new")[0]) == (5, 8)

    def test_its_last_chain_stays_however_long_it_is(self, index: PrefixIndex) -> None:
        insert(index, "short", 1, now_ns=0)
        insert(index, "far longer than allowed", 1, now_ns=1)
        index.bound(1, 3)
        assert match(index, "far longer than allowed")[0] == index.even_blocks_of(1) == 23

    def test_a_bound_that_is_kept_or_is_for_nobody_changes_nothing(self, index: PrefixIndex) -> None:
        insert(index, "hello", 1)
        index.bound(1, 5)
        index.bound(2, 0)
        assert (index.even_blocks_of(1), index.even_blocks_of(2)) == (5, 0)

    def test_blocks_of_a_slot_follow_every_change(self, index: PrefixIndex) -> None:
        insert(index, "hello world", 1, now_ns=0)
        insert(index, "hello there", 1, now_ns=1)
        assert index.even_blocks_of(1) == 6 + 5 + 5
        index.retract(chain_of("hello world"), 1, 6)
        assert index.even_blocks_of(1) == 6 + 5
        index.expire(3 * TTL_NS)
        assert index.even_blocks_of(1) == 0
        insert(index, "hello", 1, now_ns=3 * TTL_NS)
        index.remove_target(1)
        assert index.even_blocks_of(1) == 0

    def test_its_earliest_chain_is_the_one_not_asked_for_the_longest(self, index: PrefixIndex) -> None:
        assert index.earliest_ns(1) is None
        insert(index, "other", 2, now_ns=1)
        insert(index, "first", 1, now_ns=3)
        insert(index, "second", 1, now_ns=4)
        assert index.earliest_ns(1) == 3
        insert(index, "first", 1, now_ns=5)
        assert index.earliest_ns(1) == 4
        index.remove_target(1)
        assert index.earliest_ns(1) is None

    def test_when_the_prompt_that_it_goes_on_from_was_sent(self, index: PrefixIndex) -> None:
        insert(index, "system", 1, now_ns=1)
        insert(index, "system, one", 1, now_ns=2)
        insert(index, "system, two", 1, now_ns=3)
        insert(index, "system, one, more", 2, now_ns=9)
        assert index.last_sent_ns(chain_of("system, one, more"), 1) == 2
        assert index.last_sent_ns(chain_of("system, two, more"), 1) == 3
        assert index.last_sent_ns(chain_of("system, two"), 1) == 3
        assert index.last_sent_ns(chain_of("another"), 1) is None
        assert index.last_sent_ns(chain_of("system, one"), 7) is None

    def test_a_beginning_that_was_only_shared_was_never_sent_by_itself(self, index: PrefixIndex) -> None:
        insert(index, "stem-old", 1, now_ns=1)
        insert(index, "stem-new", 1, now_ns=2)
        assert index.last_sent_ns(chain_of("stem-other"), 1) is None
        assert index.last_sent_ns(chain_of("stem-o"), 1) is None, "in the middle of a run"


# Hints of clients


def full_index(texts: str = "abc", more_bytes: int = 0) -> PrefixIndex:
    """Index with room for as many one-slot chains as letters, and some bytes more."""
    roomy = PrefixIndex(ROOMY_BYTES, TTL_NS)
    for now_ns, letter in enumerate(texts):
        insert(roomy, f"{letter}-------", 0, now_ns)
    return PrefixIndex(roomy.size_bytes + more_bytes, TTL_NS)


SPARED_BYTES = EMPTY_SPARED_BYTES + END_BYTES


def known_in(index: PrefixIndex, texts: str) -> str:
    return "".join(letter for letter in texts if match(index, f"{letter}-------")[0] == 8)


def test_a_spared_chain_outlives_those_sent_after_it_once() -> None:
    index = full_index(more_bytes=SPARED_BYTES)
    insert(index, "a-------", 0, 0)
    index.spare(chain_of("a-------"), 0)
    lasted = []
    for now_ns, letter in enumerate("bcdefgh", 1):
        insert(index, f"{letter}-------", 0, now_ns)
        lasted.append(known_in(index, "a"))
    assert lasted == ["a", "a", "a", "a", "a", "a", ""], "d would have pushed it out, and then h does"


def test_a_spared_stem_outlives_the_conversations_that_went_on_from_it() -> None:
    roomy = PrefixIndex(ROOMY_BYTES, TTL_NS)
    for text in ("stem", "stem-and-leaf", "x"):
        insert(roomy, text, 0)
    index = PrefixIndex(roomy.size_bytes + SPARED_BYTES, TTL_NS)
    insert(index, "stem", 0)
    index.spare(chain_of("stem"), 0)
    insert(index, "stem-and-leaf", 0)
    for now_ns, text in enumerate("xyz", 1):
        insert(index, text, 0, now_ns)
    assert match(index, "stem-and-leaf")[0] == 4


def test_the_chain_of_an_ended_session_goes_before_all_others_of_its_slot() -> None:
    index = full_index()
    for now_ns, letter in enumerate("abc"):
        insert(index, f"{letter}-------", 0, now_ns)
    index.release(chain_of("c-------"), 0, 0)
    assert index.check() == []
    insert(index, "d-------", 0, 3)
    assert known_in(index, "abcd") == "abd"


def test_what_others_share_with_an_ended_session_stays(index: PrefixIndex) -> None:
    insert(index, "stem-one", 0)
    insert(index, "stem-two", 0, 1)
    index.release(chain_of("stem-two"), 0, 5)
    index.bound(0, 8)
    assert (match(index, "stem-one")[0], match(index, "stem-two")[0]) == (8, 5)


def test_an_eighth_of_a_slot_s_chains_at_most_is_spared_the_latest_ones() -> None:
    index = PrefixIndex(ROOMY_BYTES, TTL_NS)
    for now_ns, letter in enumerate("abcdefghijklmnop"):
        insert(index, f"{letter}-------", 0, now_ns)
        index.spare(chain_of(f"{letter}-------"), 0)
    assert index.check() == []
    tight = PrefixIndex(index.size_bytes, TTL_NS)
    for now_ns, letter in enumerate("abcdefghijklmnop"):
        insert(tight, f"{letter}-------", 0, now_ns)
        tight.spare(chain_of(f"{letter}-------"), 0)
    for now_ns, number in enumerate(range(10, 26), 16):
        insert(tight, f"{number}------", 0, now_ns)
    assert tight.check() == []
    assert known_in(tight, "abcdefghijklmnop") == "op"


def test_the_end_of_a_session_takes_nothing_that_was_sent_before(index: PrefixIndex) -> None:
    """A stem sent often is evicted no earlier because a last request goes on from it, or ends where it does."""
    for now_ns, text in enumerate(("a-------", "b-------", "stem")):
        insert(index, text, 0, now_ns)
    insert(index, "stem", 0, 3)
    index.release(chain_of("stem"), 0, 4)
    insert(index, "stem-end", 0, 4)
    index.release(chain_of("stem-end"), 0, 4)
    assert index.check() == []
    index.bound(0, 20)
    assert known_in(index, "ab") == "ab"
    assert match(index, "stem-end")[0] == 4
    index.bound(0, 12)
    assert known_in(index, "ab") == "b", "the stem is the freshest"


def test_text_in_growing_blocks_counts_by_its_size() -> None:
    index = PrefixIndex(10**7, TTL_NS)
    chain = b"".join(number.to_bytes(PREFIX_HASH_BYTES, "big") for number in range(EVEN_BLOCKS + 128))
    stem = chain[: (EVEN_BLOCKS + 64) * PREFIX_HASH_BYTES]
    index.insert(chain, 0, 0)
    assert index.even_blocks_of(0) == 4 * EVEN_BLOCKS
    index.insert(stem, 0, 1)
    index.insert(stem, 1, 1)
    assert (index.even_blocks_of(0), index.even_blocks_of(1)) == (4 * EVEN_BLOCKS, 2 * EVEN_BLOCKS)
    index.bound(0, 3 * EVEN_BLOCKS)
    assert index.even_blocks_of(0) == 2 * EVEN_BLOCKS
    index.remove_target(0)
    assert index.even_blocks_of(0) == 0


def release_all(index: PrefixIndex, chain: bytes, slot: int) -> None:
    index.release(chain, slot, 0)


@pytest.mark.parametrize("hint", [PrefixIndex.spare, release_all])
def test_a_hint_about_a_chain_that_is_not_there_changes_nothing(
    index: PrefixIndex, hint: Callable[[PrefixIndex, bytes, int], None]
) -> None:
    insert(index, "stem-one", 0)
    for text, slot in (("other", 0), ("stem", 0), ("stem-one-two", 0), ("stem-one", 1)):
        hint(index, chain_of(text), slot)
    assert index.check() == []
    assert match(index, "stem-one") == (8, 1)
