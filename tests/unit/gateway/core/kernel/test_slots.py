"""Slots of one engine: declared, reported or learnt, and the number that is free."""

from __future__ import annotations

import random

import pytest

from gateway.core.kernel.slots import EngineSlots

MS = 1_000_000


def probe(
    slots: EngineSlots, running: int, waiting: int, *, unread: int = 0, in_flight: int, kv: float = 0.2, told: int = 0
) -> None:
    slots.observe(running, waiting, told=told, unread=unread, in_flight=in_flight, kv_usage=kv)


def room(slots: EngineSlots, *, running: int = 0, waiting: int = 0, unreflected: int = 0, in_flight: int = 0) -> int:
    return slots.room(running=running, waiting=waiting, unreflected=unreflected, in_flight=in_flight, kv_usage=0.2)


def test_what_is_declared_comes_before_what_the_engine_tells_and_that_before_what_is_learnt() -> None:
    slots = EngineSlots(0)
    for _ in range(2):
        probe(slots, 4, 2, unread=2, in_flight=6)
    assert (slots.total, slots.learnt) == (4, 4)
    probe(slots, 4, 2, unread=2, in_flight=6, told=8)
    assert slots.total == 8
    slots.forget()
    assert slots.total == 0, "it may come back with another number"
    assert EngineSlots(16).total == 16


def test_the_total_follows_whatever_is_observed() -> None:
    rng = random.Random(1)
    slots, told = EngineSlots(0), 0
    for _ in range(300):
        if rng.random() < 0.1:
            slots.forget()
            told = 0
        else:
            told = rng.choice((0, 0, 16))
            running, waiting = rng.randrange(5), rng.randrange(3)
            probe(slots, running, waiting, unread=rng.randrange(3), in_flight=running + waiting, told=told)
        assert slots.total == (told or slots.learnt)


class TestLearning:
    def test_slots_are_out_where_requests_wait_while_none_is_read(self) -> None:
        slots = EngineSlots(0)
        probe(slots, 4, 3, unread=3, in_flight=7)
        assert slots.total == 0, "one request may only just have come"
        probe(slots, 4, 3, unread=3, in_flight=7)
        assert slots.total == 4

    @pytest.mark.parametrize(
        ("unread", "kv", "why"),
        [(4, 0.2, "it reads a prompt while others wait"), (3, 0.95, "others wait for room in the cache")],
    )
    def test_other_reasons_to_wait_tell_nothing(self, unread: int, kv: float, why: str) -> None:
        slots = EngineSlots(0)
        for _ in range(5):
            probe(slots, 4, 3, unread=unread, in_flight=7, kv=kv)
        assert slots.total == 0, why

    def test_fewer_than_it_ever_ran_are_no_limit(self) -> None:
        slots = EngineSlots(0)
        probe(slots, 9, 0, in_flight=9)
        for _ in range(5):
            probe(slots, 4, 1, unread=1, in_flight=5)
        assert slots.total == 0

    def test_an_engine_that_runs_more_than_was_learnt_unlearns_it(self) -> None:
        slots = EngineSlots(0)
        for _ in range(2):
            probe(slots, 4, 1, unread=1, in_flight=5)
        probe(slots, 5, 0, in_flight=5)
        assert slots.total == 0

    def test_an_engine_that_starts_anew_may_have_others(self) -> None:
        slots = EngineSlots(0)
        for _ in range(2):
            probe(slots, 4, 1, unread=1, in_flight=5)
        slots.forget()
        assert slots.total == 0


class TestRoom:
    def test_is_what_is_left_of_the_slots_and_negative_where_requests_wait_for_one(self) -> None:
        slots = EngineSlots(16)
        assert [room(slots, in_flight=count) for count in (0, 10, 16, 19)] == [16, 6, 0, -3]

    def test_requests_of_others_take_slots_as_well(self) -> None:
        slots = EngineSlots(16)
        slots.started(3)
        probe(slots, 10, 0, in_flight=3)
        assert slots.foreign == 7
        assert room(slots, running=10, in_flight=3) == 6

    def test_a_request_that_ended_since_the_probe_was_sent_is_none_of_others(self) -> None:
        slots = EngineSlots(16)
        slots.started(5)
        probe(slots, 5, 0, in_flight=3)
        assert slots.foreign == 0

    def test_an_engine_of_unknown_slots_may_be_given_as_many_again_as_it_runs(self) -> None:
        slots = EngineSlots(0)
        assert room(slots) == 8
        assert room(slots, running=20, unreflected=5) == 15
        assert room(slots, running=20, waiting=25) == -5

    def test_there_is_none_where_requests_wait_for_room_in_the_cache(self) -> None:
        slots = EngineSlots(256)
        assert slots.room(running=40, waiting=3, unreflected=0, in_flight=43, kv_usage=0.97) == -3


def test_the_time_between_two_that_leave_is_their_duration_over_the_slots() -> None:
    slots = EngineSlots(4)
    assert slots.release_ns() == 0
    slots.ended(400 * MS)
    assert slots.release_ns() == 100 * MS
    for _ in range(200):
        slots.ended(800 * MS)
    assert slots.release_ns() == pytest.approx(200 * MS, rel=0.01)
