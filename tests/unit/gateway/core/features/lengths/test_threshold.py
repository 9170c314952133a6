from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.lengths.config import ThresholdConfig
from gateway.core.features.lengths.threshold import Move, Threshold, Trouble

SECOND = 1_000_000_000
CONFIG = ThresholdConfig(tuned=True, requests_min=100, patience_ns=60 * SECOND)
HOME, LIMIT = 8_192, 16_384


class Pools:
    """Threshold, and requests that end in the pools on both sides of it."""

    def __init__(self, config: ThresholdConfig = CONFIG, home: int = HOME, limit: int = LIMIT) -> None:
        self.now_ns = 0
        self.threshold = Threshold(config, home, limit, 0)

    def end(self, count: int = 100, *, troubled: int = 0, late_short: int = 0, late_long: int = 0) -> Move | None:
        """End `count` requests in the short pool and half as many in the long one, over an interval."""
        for number in range(count):
            after_ns = 3 * SECOND if number < late_short else SECOND
            trouble = Trouble.PREEMPTED if number < troubled else None
            self.threshold.ended(in_short=True, trouble=trouble, first_token_after_ns=after_ns)
        for number in range(count // 2):
            self.threshold.ended(in_short=False, first_token_after_ns=3 * SECOND if number < late_long else SECOND)
        self.now_ns += CONFIG.interval_ns
        moved = self.threshold.adjust(self.now_ns)
        return moved.move if moved else None


def test_it_stays_where_it_was_set_while_nothing_is_wrong() -> None:
    pools = Pools()
    assert [pools.end() for _ in range(50)] == [None] * 50
    assert pools.threshold.tokens == HOME


def test_trouble_in_the_short_pool_brings_it_down_and_quiet_brings_it_back() -> None:
    pools = Pools()
    assert pools.end(troubled=5) is Move.TROUBLE
    assert pools.threshold.tokens == int(HOME * CONFIG.tighten)
    assert pools.end() is Move.HOME
    for _ in range(20):
        pools.end()
    assert pools.threshold.tokens == HOME
    assert pools.threshold.moves[Move.TROUBLE] == 1


def test_one_that_went_wrong_is_no_evidence() -> None:
    pools = Pools(CONFIG)
    assert pools.end(troubled=1) is None


def test_too_few_requests_are_no_evidence_until_there_are_enough() -> None:
    pools = Pools()
    assert pools.end(40, troubled=20) is None
    assert pools.end(40, troubled=20) is Move.TROUBLE


def test_old_evidence_is_thrown_away() -> None:
    pools = Pools()
    pools.end(40, troubled=40)
    for _ in range(31):
        pools.end(0)
    assert pools.end(100) is None


def test_it_moves_at_most_once_an_interval() -> None:
    pools = Pools()
    pools.end(troubled=50)
    for _ in range(500):
        pools.threshold.ended(in_short=True, trouble=Trouble.REJECTED)
    assert pools.threshold.adjust(pools.now_ns + CONFIG.interval_ns - 1) is None
    assert pools.threshold.adjust(pools.now_ns + CONFIG.interval_ns) is not None


def test_it_stays_below_where_it_had_to_come_down_from_and_longer_each_time() -> None:
    pools = Pools()
    waits = []
    for _ in range(3):
        while pools.threshold.tokens < HOME:
            pools.end()
        pools.end(troubled=50)
        down_ns = pools.now_ns
        while pools.threshold.tokens < HOME:
            pools.end()
        waits.append(pools.now_ns - down_ns)
    assert waits[0] >= CONFIG.patience_ns
    assert waits[1] >= 2 * CONFIG.patience_ns
    assert waits[2] >= 4 * CONFIG.patience_ns


def test_a_late_long_pool_raises_it_beyond_home_and_it_comes_home_after() -> None:
    pools = Pools()
    assert pools.end(late_long=20) is Move.LONG_LATE
    assert pools.threshold.tokens > HOME
    assert pools.end() is Move.HOME
    assert pools.threshold.tokens == HOME


def test_a_late_short_pool_lowers_it_only_if_the_long_one_is_less_late() -> None:
    pools = Pools()
    assert pools.end(late_short=20) is Move.SHORT_LATE
    other = Pools()
    assert other.end(late_short=20, late_long=40) is Move.LONG_LATE


def test_trouble_goes_before_lateness() -> None:
    assert Pools().end(troubled=50, late_long=50) is Move.TROUBLE


def test_other_settings_keep_it_within_their_bounds() -> None:
    pools = Pools()
    pools.threshold.configure(CONFIG, 2_048, 4_096)
    assert pools.threshold.tokens == 4_096
    pools.threshold.configure(CONFIG, 512, 600)
    assert pools.threshold.tokens == 600


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.integers(0, 150)), max_size=60
    ),
    st.integers(1, 70_000),
    st.integers(0, 70_000),
    st.integers(1, 5_000),
)
def test_it_never_leaves_its_bounds_nor_hurries(
    told: list[tuple[int, int, int, int]], home: int, more: int, least: int
) -> None:
    config = ThresholdConfig(tuned=True, tokens_min=least, requests_min=50)
    pools = Pools(config, home, home + more)
    moves_ns = []
    for count, troubled, late_short, late_long in told:
        before = pools.threshold.tokens
        move = pools.end(count, troubled=troubled, late_short=late_short, late_long=late_long)
        after = pools.threshold.tokens
        assert min(least, home) <= after <= home + more
        assert (move is None) == (before == after)
        if move in (Move.TROUBLE, Move.SHORT_LATE):
            assert after < before
        if move is Move.LONG_LATE:
            assert after > before
        if move is not None:
            moves_ns.append(pools.now_ns)
    assert all(b - a >= config.interval_ns for a, b in pairwise(moves_ns))
    assert sum(pools.threshold.moves.values()) == len(moves_ns)
