from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.features.kv_events import engine_cache
from gateway.core.features.kv_events.engine_cache import GRACE_NS, Answer, EngineCache, Settled, TieResult
from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind
from tests.support.core import MS, SECOND, profile

SIZE = 16
TEXT = 64
"""Bytes of a block of text: 16 tokens of four bytes."""


def key(name: str, at: int) -> bytes:
    return f"{name}{at:04}".encode().rjust(8, b"-")[-8:]


def chain(name: str, blocks: int) -> bytes:
    return b"".join(key(name, at) for at in range(blocks))


def stored(name: str, blocks: range, after: bytes | None = None, tier: CacheTier = CacheTier.DEVICE) -> CacheChange:
    """Blocks of a sequence of the engine. `after`: the block before the first; None: the sequence's own."""
    parent = key(name, blocks.start - 1) if after is None and blocks.start else after or b""
    packed = b"".join(key(name, at) for at in blocks)
    return CacheChange(ChangeKind.STORED, packed, parent, SIZE, tier)


def removed(name: str, blocks: range, tier: CacheTier = CacheTier.DEVICE) -> CacheChange:
    return CacheChange(ChangeKind.REMOVED, b"".join(key(name, at) for at in blocks), tier=tier)


def answer(
    prompt: bytes, *, tokens: int, output: int = 1, started: int = 0, ended: int = 100 * MS, first: int = 0
) -> Answer:
    text = replace(profile("a"), prefix=prompt, prefix_block_bytes=TEXT, prompt_bytes=len(prompt) // 8 * TEXT)
    return Answer(text, tokens, output, started, ended, first_token_ns=first)


class Engine:
    """Cache of an engine, with the clock of the test."""

    def __init__(self, blocks_max: int = 1_000) -> None:
        self.cache = EngineCache(blocks_max)

    def store(self, change: CacheChange, now_ns: int = 50 * MS) -> bool:
        fits = self.cache.store(change, now_ns)
        assert self.cache.violations() == []
        return fits

    def settle(self, *answers: Answer, now_ns: int = 10 * SECOND) -> list[TieResult]:
        return [each.result for each in self.settled(*answers, now_ns=now_ns)]

    def settled(self, *answers: Answer, now_ns: int = 10 * SECOND) -> list[Settled]:
        for each in answers:
            assert self.cache.expect(each)
        settled = list(self.cache.settle(now_ns))
        assert self.cache.violations() == []
        return settled

    def remove(self, change: CacheChange) -> list[tuple[bytes, int]]:
        shortened = [(each.chain, each.blocks) for each in self.cache.remove(change)]
        assert self.cache.violations() == []
        return shortened


P = chain("p", 10)
"""Prompt of ten blocks of text, which are ten of the engine's."""


class TestTies:
    def test_an_answer_is_tied_to_the_only_chain_of_its_length(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        (settled,) = engine.settled(answer(P, tokens=160))
        assert (settled.result, settled.chain, settled.blocks) == (TieResult.TIED, P, 10)
        assert engine.cache.tied == 10

    def test_blocks_of_the_answer_lead_to_the_prompts(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        for at in (10, 11):
            engine.store(stored("e", range(at, at + 1)))
        assert engine.settle(answer(P, tokens=163, output=30)) == [TieResult.TIED]
        assert engine.cache.tied == 10, "those of the answer are not the prompt's"

    def test_a_chain_of_another_length_is_not_taken(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(9)))
        engine.store(stored("f", range(12)))
        assert engine.settle(answer(P, tokens=160)) == [TieResult.UNHEARD]

    def test_two_chains_of_one_length_are_ambiguous(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.store(stored("f", range(10)))
        assert engine.settle(answer(P, tokens=160)) == [TieResult.AMBIGUOUS]
        assert engine.cache.tied == 0

    def test_two_answers_of_one_length_are_ambiguous(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        both = answer(P, tokens=160), answer(chain("q", 10), tokens=161, ended=101 * MS)
        assert engine.settle(*both) == [TieResult.AMBIGUOUS] * 2

    @pytest.mark.parametrize("told_ns", [MS, 100 * MS + GRACE_NS + 1])
    def test_a_chain_of_another_time_is_not_taken(self, told_ns: int) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)), told_ns)
        assert engine.settle(answer(P, tokens=160, started=2 * MS)) == [TieResult.UNHEARD]

    def test_a_chain_whose_last_block_came_long_before_the_end_is_not_taken(self) -> None:
        """Tokens came every 10 ms, and the last block is one token before the end."""
        engine = Engine()
        engine.store(stored("f", range(10)), 2 * SECOND)
        engine.store(stored("e", range(10)), 3 * SECOND)
        assert engine.settle(answer(P, tokens=100, output=61, first=2_400 * MS, ended=3 * SECOND)) == [TieResult.TIED]
        assert engine.remove(removed("e", range(5))) == [(P, 0)]

    def test_of_two_chains_the_one_counts_whose_prompt_came_before_the_first_token(self) -> None:
        engine = Engine()
        for name, read_ns in (("e", 2_100 * MS), ("f", 2_800 * MS)):
            engine.store(stored(name, range(6)), read_ns)
            engine.store(stored(name, range(6, 10)), 3 * SECOND)
        one = answer(P, tokens=100, output=61, started=2 * SECOND, first=2_400 * MS, ended=3 * SECOND)
        assert engine.settle(one) == [TieResult.TIED]
        assert engine.remove(removed("f", range(5))) == []
        assert engine.remove(removed("e", range(5))) == [(P, 0)]

    def test_a_chain_that_went_on_before_the_answer_ended_is_not_taken(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.store(stored("e", range(10, 11)), 60 * MS)
        assert engine.settle(answer(P, tokens=160)) == [TieResult.UNHEARD]

    def test_the_next_turn_may_follow_at_once(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.store(stored("e", range(10, 14)), 101 * MS)
        assert engine.settle(answer(P, tokens=160)) == [TieResult.TIED]

    def test_events_may_come_after_the_answer(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)), 100 * MS + GRACE_NS)
        assert engine.settle(answer(P, tokens=160)) == [TieResult.TIED]

    def test_no_answer_is_settled_before_its_events_must_have_come(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        one = answer(P, tokens=160)
        assert engine.settle(one, now_ns=100 * MS + GRACE_NS - 1) == []
        assert engine.cache.due_ns == 100 * MS + GRACE_NS
        assert engine.settle(now_ns=100 * MS + GRACE_NS) == [TieResult.TIED]
        assert engine.cache.due_ns is None

    def test_a_block_without_a_known_parent_has_no_place(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(5, 10)))
        assert (len(engine.cache), engine.cache.unplaced) == (0, 5)

    def test_a_block_told_again_elsewhere_stays_where_it_is(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.store(CacheChange(ChangeKind.STORED, key("e", 3), key("e", 8), SIZE))
        assert engine.settle(answer(P, tokens=160)) == [TieResult.TIED]

    def test_a_prompt_that_is_known_is_not_tied_again(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        engine.store(stored("e", range(10, 11)), 5 * SECOND)
        again = answer(P, tokens=160, output=17, started=4 * SECOND, ended=6 * SECOND)
        assert engine.settle(again) == [TieResult.KNOWN]

    def test_blocks_that_are_each_others_parent_are_walked_once(self) -> None:
        """An engine tells a block again after the one that came after it."""
        engine = Engine()
        engine.store(stored("e", range(2)))
        engine.remove(removed("e", range(1)))
        engine.store(stored("e", range(1), after=key("e", 1)))
        (settled,) = engine.settled(answer(P, tokens=48))
        assert (settled.result, settled.blocks) == (TieResult.TIED, 0), "the beginning is not held"
        assert engine.cache.tied == 2

    def test_a_prompt_with_a_hole_is_not_claimed(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        engine.store(stored("e", range(10, 15)), 5 * SECOND)
        engine.remove(removed("e", range(12, 13)))
        longer = chain("p", 15)
        (settled,) = engine.settled(answer(longer, tokens=240, started=4 * SECOND, ended=6 * SECOND))
        assert (settled.result, settled.blocks) == (TieResult.TIED, 0)
        assert engine.cache.tied == 12

    def test_a_hole_that_was_filled_is_tied_again(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        assert engine.remove(removed("e", range(4, 5))) == [(P, 4)]
        engine.store(stored("e", range(4, 5)), 5 * SECOND)
        engine.store(stored("e", range(9, 10)), 5 * SECOND)
        (settled,) = engine.settled(answer(P, tokens=160, started=4 * SECOND, ended=6 * SECOND))
        assert (settled.result, settled.blocks, engine.cache.tied) == (TieResult.TIED, 10, 10)
        assert engine.remove(removed("e", range(4, 5))) == [(P, 4)]


class TestRemovals:
    def test_a_removed_block_shortens_the_prompt_before_it(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        assert engine.remove(removed("e", range(8, 10))) == [(P, 8)]
        assert engine.remove(removed("e", range(3, 4))) == [(P, 3)]
        assert engine.cache.tied == len(engine.cache) == 7

    def test_an_untied_or_unknown_block_shortens_nothing(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        assert engine.remove(removed("e", range(8, 12))) == []
        assert len(engine.cache) == 8

    def test_a_block_that_went_to_other_memory_is_still_held(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        engine.store(stored("e", range(10), tier=CacheTier.HOST))
        assert engine.remove(removed("e", range(10))) == []
        assert engine.remove(removed("e", range(9, 10), tier=CacheTier.HOST)) == [(P, 9)]

    def test_the_next_turn_is_one_prompt_with_the_turn_before(self) -> None:
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        engine.store(stored("e", range(10, 15)), 5 * SECOND)
        longer = chain("p", 16)
        engine.settle(answer(longer, tokens=240, started=4 * SECOND, ended=6 * SECOND))
        assert engine.remove(removed("e", range(14, 15))) == [(longer, 14)], "five blocks are six of text"
        assert engine.remove(removed("e", range(5, 6))) == [(longer, 5)]

    def test_prompts_that_part_are_shortened_each_by_its_own_blocks(self) -> None:
        """The text before the parting has twice the tokens of the rest, so that proportions alone would be wrong."""
        engine = Engine()
        engine.store(stored("e", range(12)))
        one = chain("s", 6) + chain("t", 6)
        two = chain("s", 6) + chain("u", 6)
        engine.settle(answer(one, tokens=192))
        engine.store(stored("f", range(8, 12), after=key("e", 7)), 5 * SECOND)
        engine.settle(answer(two, tokens=192, started=4 * SECOND, ended=6 * SECOND))
        assert engine.remove(removed("e", range(8, 12))) == [(one, 6)]
        assert engine.remove(removed("f", range(8, 12))) == [(two, 6)]

    def test_another_tenants_prompt_keeps_its_own_part(self) -> None:
        """Chains of two tenants share nothing, and their blocks at the engine may."""
        engine = Engine()
        engine.store(stored("e", range(10)))
        engine.settle(answer(P, tokens=160))
        engine.store(stored("f", range(5, 10), after=key("e", 4)), 5 * SECOND)
        other = chain("o", 10)
        engine.settle(answer(other, tokens=160, started=4 * SECOND, ended=6 * SECOND))
        assert engine.remove(removed("f", range(5, 10))) == [(other, 5)]
        assert engine.remove(removed("e", range(4, 5))) == [(P, 4)]


class TestBounds:
    def test_no_more_blocks_are_kept_than_allowed(self) -> None:
        engine = Engine(blocks_max=12)
        assert engine.store(stored("e", range(12)))
        assert engine.store(stored("e", range(12))), "the same again"
        assert not engine.store(stored("f", range(1)))

    def test_no_more_answers_wait_than_allowed(self) -> None:
        engine = Engine()
        expected = [engine.cache.expect(answer(P, tokens=160)) for _ in range(1_025)]
        assert expected == [True] * 1_024 + [False]

    def test_chains_have_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_cache, "_CHAIN_BYTES_MAX", len(P) + 8)
        engine = Engine()
        engine.store(stored("e", range(10)))
        assert engine.settle(answer(P, tokens=160)) == [TieResult.TIED]
        engine.store(stored("f", range(11)), 5 * SECOND)
        other = answer(chain("o", 11), tokens=176, started=4 * SECOND, ended=6 * SECOND)
        assert engine.settle(other) == [TieResult.FULL]
        engine.remove(removed("e", range(10)))
        assert engine.settle(other) == [TieResult.TIED], "room is free again"

    def test_chains_of_answers_that_wait_have_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_cache, "_CHAIN_BYTES_MAX", 2 * len(P))
        engine = Engine()
        assert [engine.cache.expect(answer(P, tokens=160)) for _ in range(3)] == [True, True, False]
        assert engine.settle() == [TieResult.UNHEARD] * 2
        assert engine.cache.expect(answer(P, tokens=160)), "room is free again"

    def test_of_many_chains_of_one_length_none_is_looked_into(self) -> None:
        """A trunk with as many leaves: to walk from each leaf would take the square of what the engine told."""
        engine = Engine(blocks_max=500)
        engine.store(stored("e", range(200)), MS)
        for at in range(200):
            engine.cache.store(stored(chr(65 + at), range(200, 201), after=key("e", 199)), 50 * MS)
        one = answer(P, tokens=160, output=201 * SIZE - 159)
        assert engine.settle(one) == [TieResult.AMBIGUOUS]
        assert engine.cache._steps < 20

    def test_a_search_ends_after_many_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_cache, "_STEPS_MAX", 8)
        engine = Engine()
        engine.store(stored("e", range(10)))
        assert engine.settle(answer(P, tokens=160)) == [TieResult.AMBIGUOUS]
        assert engine.cache.tied == 0

    def test_answers_are_left_for_the_next_time_after_many_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_cache, "_STEPS_MAX", 15)
        engine = Engine()
        for name, blocks in (("e", 10), ("f", 9), ("g", 8)):
            engine.store(stored(name, range(blocks)))
        three = [answer(chain(name, size), tokens=size * SIZE) for name, size in (("p", 10), ("q", 9), ("r", 8))]
        assert engine.settle(*three) == [TieResult.TIED] * 2
        assert engine.settle() == [TieResult.TIED]
