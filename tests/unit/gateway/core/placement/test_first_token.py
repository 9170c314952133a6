"""Line fitted through noisy times to the first token."""

from __future__ import annotations

import random

import pytest

from gateway.core.placement.first_token import FirstTokenLine

MS = 1_000_000


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    line = FirstTokenLine()
    line.add(1000, 100 * MS)
    assert line.estimate_ns(1000) == 0


def test_it_finds_what_a_byte_costs() -> None:
    line, rng = FirstTokenLine(), random.Random(1)
    for _ in range(200):
        size = rng.randrange(20_000)
        line.add(size, round(60 * MS + 0.1 * MS * size + rng.uniform(-5, 5) * MS))
    assert abs(line.estimate_ns(10_000) - 1060 * MS) < 30 * MS
    assert abs(line.estimate_ns(0) - 60 * MS) < 30 * MS


def test_it_follows_an_engine_that_becomes_faster() -> None:
    line = FirstTokenLine()
    for took_ms in [500] * 100 + [50] * 300:
        line.add(1000, took_ms * MS)
    assert line.estimate_ns(1000) < 60 * MS


def test_it_never_promises_less_than_nothing() -> None:
    line = FirstTokenLine()
    for size in range(1000, 2000, 50):
        line.add(size, size * MS)
    assert line.estimate_ns(0) == 0


class TestByte:
    def test_it_is_the_average_until_there_is_a_line(self) -> None:
        line = FirstTokenLine()
        assert line.byte_ns() == 0
        line.add(0, 5 * MS)
        assert line.byte_ns() == 0
        line.add(1000, 75 * MS)
        assert line.byte_ns() == pytest.approx(80_000, rel=0.02)

    def test_it_is_the_slope_once_there_is_one(self) -> None:
        line = FirstTokenLine()
        for size in range(1000, 3000, 50):
            line.add(size, 60 * MS + 2000 * size)
        assert round(line.byte_ns()) == 2000

    def test_noise_makes_it_no_more_than_the_average(self) -> None:
        """Sizes hardly differ, and the larger requests happened to wait."""
        line = FirstTokenLine()
        for number in range(40):
            line.add(1000 + 10 * (number % 2), MS * (1 + 40 * (number % 2)))
        assert line.slope_ns() == pytest.approx(4 * MS, rel=0.01)
        assert line.byte_ns() == pytest.approx(21 * MS / 1000, rel=0.1)

    def test_where_more_took_no_longer_it_is_the_average(self) -> None:
        line = FirstTokenLine()
        for _ in range(20):
            line.add(1000, 10 * MS)
        assert line.byte_ns() == pytest.approx(10_000)


class TestSlope:
    def test_it_is_what_one_byte_more_takes(self) -> None:
        line = FirstTokenLine()
        for size in range(1000, 3000, 50):
            line.add(size, 60 * MS + 2000 * size)
        assert round(line.slope_ns()) == 2000

    def test_it_is_nothing_before_enough_was_seen(self) -> None:
        line = FirstTokenLine()
        for size in range(7):
            line.add(1000 * size, MS * size)
        assert line.slope_ns() == 0
        for size in range(7, 9):
            line.add(1000 * size, MS * size)
        assert line.slope_ns() > 0

    def test_it_is_nothing_where_more_bytes_took_no_longer_or_all_were_alike(self) -> None:
        falling, alike = FirstTokenLine(), FirstTokenLine()
        for size in range(1000, 2000, 50):
            falling.add(size, 100 * MS - 1000 * size)
            alike.add(1000, size * MS)
        assert falling.slope_ns() == alike.slope_ns() == 0
