"""Model of the replicas' caches: what they still hold, how long they keep it, and how soon prompts come back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf

import pytest

from gateway.core.block_sizes import EVEN_BLOCKS
from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.caches import Caches
from gateway.core.placement.fleet import Fleet
from gateway.core.vocabulary import ReplicaId, ReplicaObservation, RequestProfile
from tests.support.core import SECOND, Desk, desk, profile

TEN_BLOCKS = 160


@dataclass
class Told:
    """Caches that are told what a policy tells them, in the policy's order."""

    kv_tokens: int = 0
    config: PlacementConfig = field(default_factory=PlacementConfig)
    desk: Desk = field(default_factory=desk)

    def __post_init__(self) -> None:
        replicas = self.desk.core.replicas
        replicas.observe(ReplicaObservation(ReplicaId("r0"), 0, healthy=True, kv_tokens=self.kv_tokens), 0)
        self.fleet = Fleet(self.config, replicas, self.desk.core.peers, random.Random(1))
        self.caches = Caches(self.fleet, self.config)

    def send(self, asked: RequestProfile, at_ns: int, *, slot: int = 0, arrived_ns: int | None = None) -> None:
        known = self.fleet.match_replicas(asked, 1 << slot).blocks
        self.caches.sent(asked, slot, known, at_ns if arrived_ns is None else arrived_ns, at_ns)
        self.fleet.replica_index.insert(asked.prefix, slot, at_ns)

    def uncached(self, asked: RequestProfile, slot: int = 0) -> int:
        return self.caches.uncached_bytes(asked, slot)

    def learn(self, prompt_tokens: int, output_tokens: int, times: int = 500) -> None:
        asked = prompt("x")
        for _ in range(times):
            self.caches.answered(asked, prompt_tokens, output_tokens)


def prompt(letter: str, length: int = TEN_BLOCKS) -> RequestProfile:
    return profile("q", prompt=letter * length)


def test_what_was_sent_to_a_replica_need_not_be_read_there_again() -> None:
    told = Told()
    told.send(prompt("a"), 1)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes - TEN_BLOCKS
    assert told.uncached(prompt("a"), slot=1) == told.uncached(prompt("b")) == prompt("a").prompt_bytes


def test_what_an_engine_says_it_holds_pushes_out_what_does_not_fit() -> None:
    told = Told(kv_tokens=25 * 16 // 4)
    for at_ns, letter in enumerate("ab"):
        told.send(prompt(letter), at_ns)
    told.caches.holds(prompt("c").prefix, 0, 2)
    known = [letter for letter in "abc" if told.uncached(prompt(letter)) < TEN_BLOCKS]
    assert known == ["b", "c"]


def test_a_replica_that_left_takes_its_cache_with_it() -> None:
    told = Told()
    told.send(prompt("a"), 1)
    told.caches.left(0)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes


def test_what_does_not_fit_pushes_out_what_was_asked_for_longest_ago() -> None:
    told = Told(kv_tokens=25 * 16 // 4)
    for at_ns, letter in enumerate("ab"):
        told.send(prompt(letter), at_ns)
    told.send(prompt("a"), 2)
    told.send(prompt("c"), 3)
    known = [letter for letter in "abc" if told.uncached(prompt(letter)) < TEN_BLOCKS]
    assert known == ["a", "c"]


def test_a_long_prompt_takes_the_room_of_all_its_bytes() -> None:
    size = 64 * EVEN_BLOCKS
    told = Told(kv_tokens=size // 4 * 3 // 2)
    told.send(prompt("a", size), 1)
    assert told.uncached(prompt("a", size)) == 0
    told.send(prompt("b", size), 2)
    assert told.uncached(prompt("b", size)) == 0
    assert told.uncached(prompt("a", size)) == size, "there is room for one and a half"


def test_where_an_engine_does_not_tell_its_room_nothing_is_pushed_out() -> None:
    told = Told(kv_tokens=0)
    for number in range(100):
        told.send(profile("q", prompt=f"{number:03}" * 60), number)
    assert told.uncached(profile("q", prompt="000" * 60)) < 60


def test_it_remembers_no_more_than_it_has_memory_for() -> None:
    told = Told(config=PlacementConfig(prefix_index_bytes_max=4000))
    for number in range(100):
        told.send(profile("q", prompt=f"{number:03}" * 60), number)
    assert told.uncached(profile("q", prompt="000" * 60)) == profile("q", prompt="000" * 60).prompt_bytes


def test_what_was_sent_and_not_read_is_not_there() -> None:
    told = Told()
    told.send(prompt("a"), 0)
    told.send(prompt("b"), 1)
    told.caches.unread(prompt("b"), 0, 0)
    assert told.uncached(prompt("a")) < TEN_BLOCKS
    assert told.uncached(prompt("b")) == prompt("b").prompt_bytes


def test_a_token_is_as_many_bytes_as_engines_have_counted() -> None:
    told = Told(kv_tokens=25 * 16)
    told.learn(prompt_tokens=prompt("x").prompt_bytes, output_tokens=0)
    for at_ns, letter in enumerate("abc"):
        told.send(prompt(letter), at_ns)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes, "three do not fit where a token is a byte"
    assert told.uncached(prompt("b")) < TEN_BLOCKS


def test_answers_take_their_share_of_a_cache() -> None:
    told = Told(kv_tokens=50 * 16 // 4)
    tokens = prompt("x").prompt_bytes // 4
    told.learn(tokens, tokens)
    for at_ns, letter in enumerate("abc"):
        told.send(prompt(letter), at_ns)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes, "half of fifty blocks is for prompts"
    assert told.uncached(prompt("b")) < TEN_BLOCKS


def test_a_prompt_fits_beside_those_who_have_half_an_answer_left_to_write() -> None:
    told = Told()
    told.learn(prompt_tokens=prompt("x").prompt_bytes, output_tokens=100, times=2000)
    assert told.caches.fits(50, free_tokens=151, load=2)
    assert not told.caches.fits(50, free_tokens=149, load=2)
    assert not told.caches.fits(50, free_tokens=151, load=3)


@pytest.mark.parametrize("prompt_tokens", [1, 10**15])
def test_an_engine_that_counts_what_cannot_be_is_not_believed(prompt_tokens: int) -> None:
    told = Told(kv_tokens=50 * 16 // 4)
    told.learn(prompt_tokens, 0)
    for at_ns, letter in enumerate("abcdefg"):
        told.send(prompt(letter), at_ns)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes, "room for fifty blocks, at four bytes a token"


def test_one_engine_of_three_that_claims_endless_answers_keeps_nobody_from_another_gateway() -> None:
    told = Told()
    for number in range(900):
        told.learn(prompt("x").prompt_bytes // 4, 10**15 if number % 3 == 0 else 200, times=1)
    assert told.caches.fits(100, free_tokens=10_000, load=20)


class TestHowLongItKeeps:
    def test_without_end_where_nobody_knows_its_room(self) -> None:
        told = Told(kv_tokens=0)
        told.send(prompt("a"), 1)
        assert told.caches.kept_for_ns(0, 9) == inf

    def test_without_end_while_there_is_room(self) -> None:
        told = Told(kv_tokens=25 * 16 // 4)
        assert told.caches.kept_for_ns(0, 9) == inf
        told.send(prompt("a"), 1)
        told.send(prompt("b"), 2)
        assert told.caches.kept_for_ns(0, 9) == inf, "20 blocks of 25 are no nine tenths"

    def test_as_long_ago_as_the_earliest_of_a_full_one_was_asked_for(self) -> None:
        told = Told(kv_tokens=22 * 16 // 4)
        told.send(prompt("a"), 1)
        told.send(prompt("b"), 2)
        assert told.caches.kept_for_ns(0, 9) == 8
        told.send(prompt("a"), 3)
        assert told.caches.kept_for_ns(0, 9) == 7
        assert told.caches.kept_for_ns(1, 9) == inf, "the other one is empty"


class TestTurns:
    def test_the_first_gap_counts_as_it_is_and_later_ones_as_fiftieths(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        told.send(prompt("a", 200), 6 * SECOND, arrived_ns=5 * SECOND)
        assert told.caches.gap_ns == 5 * SECOND, "until it came, not until it was placed"
        told.send(prompt("a", 240), 16 * SECOND)
        assert told.caches.gap_ns == pytest.approx(5.1 * SECOND)

    def test_whoever_begins_anew_tells_no_gap(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        told.send(profile("q", prompt="a" * 160 + "b" * 300), 5 * SECOND)
        assert told.caches.gap_ns == 0, "less than half of it was known"
        assert told.caches.continued == 0

    def test_what_came_before_the_last_turn_was_placed_is_no_gap_below_zero(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        told.send(prompt("a", 200), 7 * SECOND)
        told.send(prompt("a", 200), 8 * SECOND, arrived_ns=6 * SECOND)
        assert told.caches.gap_ns == pytest.approx(0.98 * 7 * SECOND)

    def test_the_share_of_prompts_that_go_on_is_a_moving_average(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        told.send(prompt("a", 200), 1)
        assert told.caches.continued == pytest.approx(0.02)
        told.send(prompt("b"), 2)
        assert told.caches.continued == pytest.approx(0.02 * 0.98)

    @pytest.mark.parametrize(("continued", "again"), [(0.0, 0.0), (0.5, 1.0), (0.8, 4.0), (0.99, 9.0), (1.0, 9.0)])
    def test_whoever_is_pushed_out_and_comes_back_pushes_out_another(self, continued: float, again: float) -> None:
        told = Told()
        told.caches.continued = continued
        assert told.caches.follow_ups() == pytest.approx(again)


def test_what_nobody_asks_for_is_forgotten_in_time() -> None:
    told = Told(config=PlacementConfig(prefix_ttl_ns=5))
    told.send(prompt("a"), 0)
    told.caches.expire(4)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes - TEN_BLOCKS
    told.caches.expire(6)
    assert told.uncached(prompt("a")) == prompt("a").prompt_bytes


@pytest.mark.parametrize(
    ("changed", "keeps"),
    [
        (PlacementConfig(kept_gaps=0.0), True),
        (PlacementConfig(prefix_ttl_ns=SECOND), False),
        (PlacementConfig(prefix_index_bytes_max=100_000), False),
    ],
)
def test_only_other_sizes_empty_them_and_then_they_keep_to_those(changed: PlacementConfig, keeps: bool) -> None:
    told = Told()
    told.send(prompt("a"), 0)
    told.send(prompt("a", 200), 5 * SECOND)
    told.caches.configure(changed)
    assert (told.uncached(prompt("a")) < prompt("a").prompt_bytes) == keeps
    assert told.caches.gap_ns == 5 * SECOND, "what was learnt of time stays"
    told.send(prompt("b"), 6 * SECOND)
    told.caches.configure(changed)
    assert told.uncached(prompt("b")) < prompt("b").prompt_bytes, "the second time nothing is new"
    told.caches.expire(8 * SECOND)
    is_forgotten = told.uncached(prompt("b")) == prompt("b").prompt_bytes
    assert is_forgotten == (changed.prefix_ttl_ns == SECOND)
