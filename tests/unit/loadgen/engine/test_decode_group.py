from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, DecodeOutput, Pulled, Steps
from loadgen.engine.model import Finished, FirstTokenMade
from loadgen.engine.vocabulary import FinishReason, Rejection
from tests.support.decode_steps import SteppedGroup, Work

CONFIG = DecodeGroupConfig(ranks=3, batch_max=2, base_ns=1_000, kv_token_ns=7)

Todo = list[tuple[int, int, int, int, int, str]]
"""Delay, rank, tokens of prompt and answer, duration of the KV cache's transfer, and a further action."""

todo = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 3_000), st.integers(0, 200_000)),
        st.integers(0, 2),
        st.integers(1, 900),
        st.integers(1, 60),
        st.one_of(st.just(0), st.integers(0, 4_000), st.integers(0, 90_000)),
        st.sampled_from(("", "", "", "drop", "look", "slow", "lose")),
    ),
    max_size=20,
)


def drain(group: DecodeGroup) -> Iterator[DecodeOutput]:
    while (at_ns := group.next_change_ns()) is not None:
        yield from group.advance(at_ns)


def told(outputs: list[DecodeOutput]) -> list[tuple[str, str, int]]:
    kinds = {FirstTokenMade: "first", Finished: "finished"}
    return sorted((each.request_id, kinds[type(each)], each.at_ns) for each in outputs if not isinstance(each, Pulled))


def one_by_one(stretches: list[Steps]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [
        (
            stretch.begin_ns + stretch.envelope.duration_ns(step),
            stretch.begin_ns + stretch.envelope.duration_ns(step + 1),
            tuple(tokens + step * more for tokens, more in zip(stretch.kv_tokens, stretch.running, strict=True)),
        )
        for stretch in stretches
        for step in range(stretch.steps)
    ]


@given(todo=todo, batch_max=st.integers(1, 4), kv_tokens=st.sampled_from((0, 1_000, 2_500)))
def test_jumping_tells_what_iterating_one_by_one_tells(todo: Todo, batch_max: int, kv_tokens: int) -> None:
    config = replace(CONFIG, batch_max=batch_max, kv_tokens=kv_tokens)
    stretches: list[Steps] = []
    jumps, steps = DecodeGroup(config, stretches.append), SteppedGroup(config)
    outputs: list[DecodeOutput] = []
    now_ns, lost = 0, set[int]()
    for number, (after_ns, rank, prompt, output, transfer_ns, deed) in enumerate(todo):
        now_ns += after_ns
        steps.run_until(now_ns)
        if deed == "drop" and number:
            jumps.abort(str(number - 1), now_ns)
            steps.drop(str(number - 1))
        elif deed == "look":
            outputs += jumps.advance(now_ns)
        elif deed == "slow":
            jumps.slow_down(rank, prompt, now_ns)
            steps.percent[rank] = prompt
        elif deed == "lose" and rank and rank not in lost:
            jumps.lose_rank(rank, now_ns)
            steps.lose(rank)
            lost.add(rank)
        elif deed == "lose" and rank:
            jumps.return_rank(rank, now_ns)
            steps.lost.discard(rank)
            lost.discard(rank)
        if rank not in lost:
            assert jumps.admit(str(number), rank, prompt, output, now_ns, transfer_ns=transfer_ns) is None
            steps.admit(Work(str(number), rank, prompt, output, transfer_ns))
    outputs += drain(jumps)
    steps.run_until(None)

    assert told(outputs) == sorted(steps.told)
    assert one_by_one(stretches) == steps.lasts
    assert jumps.alive == 0
    assert [(jumps.running(rank), jumps.waiting(rank), jumps.pulling(rank)) for rank in range(3)] == [(0, 0, 0)] * 3
    assert [(jumps.cached_tokens(rank), jumps.held_tokens(rank)) for rank in range(3)] == [(0, 0)] * 3


def test_the_short_goes_at_the_pace_of_the_long() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("long", 0, 500, 2, 0)
    group.admit("short", 1, 1, 2, 0)

    first_ns = 1_000 + 500 * 7
    second_ns = first_ns + 1_000 + 501 * 7
    assert told(list(drain(group))) == [
        ("long", "finished", second_ns),
        ("long", "first", first_ns),
        ("short", "finished", second_ns),
        ("short", "first", first_ns),
    ]


def test_a_rank_with_nothing_to_run_steps_along_and_its_newcomer_waits_for_the_boundary() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("a", 0, 100, 2, 0)
    group.admit("b", 1, 1, 1, 10)
    assert (group.running(1), group.waiting(1)) == (0, 1)

    assert ("b", "first", 1_700 + 1_707) in told(list(drain(group)))


def test_who_comes_at_a_boundary_takes_part_in_the_step_that_begins_there() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("a", 0, 100, 1, 0)
    assert group.advance(1_700) == [FirstTokenMade("a", 1_700), Finished("a", 1_700, FinishReason.LENGTH)]
    group.admit("b", 0, 100, 1, 1_700)

    assert told(list(drain(group))) == [("b", "finished", 3_400), ("b", "first", 3_400)]


def test_no_more_run_at_once_than_there_are_slots() -> None:
    group = DecodeGroup(CONFIG)
    for name in "abc":
        group.admit(name, 0, 10, 5, 0)

    assert (group.running(0), group.waiting(0), group.running(1)) == (2, 1, 0)


def test_a_request_whose_kv_cache_is_on_its_way_waits_as_vllm_counts() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("a", 0, 10, 5, 0, transfer_ns=50_000)
    assert (group.running(0), group.waiting(0), group.pulling(0)) == (0, 1, 1)
    assert group.next_change_ns() == 50_000
    assert group.cached_tokens(0) == 10
    assert group.advance(50_000) == [Pulled("a", 50_000)]

    assert (group.running(0), group.waiting(0), group.pulling(0)) == (1, 0, 0)


def test_who_has_no_room_in_the_cache_waits_and_is_fetched_when_there_is_some() -> None:
    group = DecodeGroup(replace(CONFIG, kv_tokens=100))
    group.admit("a", 0, 60, 5, 0)
    group.admit("b", 0, 60, 5, 0, transfer_ns=9_000)
    assert (group.running(0), group.waiting(0), group.pulling(0), group.held_tokens(0)) == (1, 1, 0, 65)

    ended_ns = next(each.at_ns for each in drain(group) if isinstance(each, Finished))
    assert [each.at_ns - ended_ns for each in drain(group)][:2] == [9_000, 9_000 + 1_000 + 60 * 7]


def test_what_no_rank_has_room_for_is_turned_away() -> None:
    group = DecodeGroup(replace(CONFIG, kv_tokens=100))

    assert group.admit("a", 0, 99, 2, 0) is Rejection.TOO_LONG
    assert group.alive == 0


def test_how_far_an_answer_has_come_can_be_asked() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("a", 0, 100, 50, 0)
    assert group.generated("a") == 0
    group.advance(1_700 + 1_707 + 5)

    assert group.generated("a") == 2


@pytest.mark.parametrize("percent", [50, 300])
def test_a_rank_that_is_slow_holds_up_the_others_even_when_it_has_nothing_to_run(percent: int) -> None:
    group = DecodeGroup(CONFIG)
    group.slow_down(2, percent, 0)
    group.admit("a", 0, 10, 1, 0)

    assert next(drain(group)).at_ns == max(1_070, 1_000 * percent // 100)


def test_a_rank_that_is_gone_holds_nobody_up() -> None:
    group = DecodeGroup(CONFIG)
    group.admit("a", 0, 900, 5, 0)
    group.admit("b", 1, 1, 2, 0)
    assert group.lose_rank(0, 0) == ["a"]

    assert told(list(drain(group))) == [("b", "finished", 1_007 + 1_014), ("b", "first", 1_007)]
