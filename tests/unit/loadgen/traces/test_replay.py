"""The part of a trace that is replayed, and how; rows left out or cut are counted."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest

from loadgen.passages import BlockText
from loadgen.traces.replay import Replay, ReplayConfig, ReplayGroup, ReplayPace
from loadgen.traces.rows import Trace, TraceFormat, TraceRow, Unreadable


def row(at_s: float, session: str = "s", *, space: str = "", tokens: int = 100, **changes: Any) -> TraceRow:
    return TraceRow(at_s, session, BlockText(space, ((1, 1),), 64, tokens, f"{at_s}"), 10, **changes)


def replay(rows: list[TraceRow], *groups: ReplayGroup, seed: int = 1, **changes: Any) -> Replay:
    trace = Trace(TraceFormat.NIGHTSIDE, rows, Unreadable(2, ["line 3: no"]))
    return Replay(trace, ReplayConfig(**changes), seed=seed, groups=groups or (ReplayGroup("here"),))


def counts(replayed: Replay) -> dict[str, int]:
    """Counts that are not 0."""
    return {name: count for name, count in asdict(replayed.counts).items() if count}


def times(replayed: Replay, group: int = 0) -> list[float]:
    return [at_s for at_s, _ in replayed.of_group(group).recorded()]


def test_programs_come_as_recorded() -> None:
    chain = [row(5), row(7, after=0, think_s=2.0), row(3, "t"), row(9, after=1, think_s=1.0)]
    replayed = replay(chain)
    (first_s, first), (second_s, second) = replayed.of_group(0).recorded()
    assert (first_s, second_s) == (3, 5)
    assert len(first.steps) == 1
    assert [(step.after, step.think_s) for step in second.steps] == [(None, 0), (0, 2), (1, 1)]
    assert [step.output_tokens for step in second.steps] == [10, 10, 10]
    assert counts(replayed) == {"rows": 6, "unreadable": 2, "replayed": 4}


def test_faster_is_faster_in_everything() -> None:
    chain = [row(4), row(6, after=0, think_s=2.0, api_s=3.0)]
    replayed = replay(chain, speed=2.0, pace=ReplayPace.RECORDED)
    ((at_s, program),) = replayed.of_group(0).recorded()
    assert (at_s, program.steps[1].think_s, program.steps[1].answer_s_min) == (2, 1, 1.5)


def test_answers_set_the_pace_unless_recorded_ones_should() -> None:
    ((_, program),) = replay([row(0, api_s=3.0)]).of_group(0).recorded()
    assert program.steps[0].answer_s_min == 0


def test_a_window_takes_what_starts_in_it() -> None:
    replayed = replay([row(1, "a"), row(5, "b"), row(9, "c"), row(99, "b", after=0)], from_s=4.0, until_s=9.0)
    assert times(replayed) == [1]
    assert counts(replayed) == {"rows": 6, "unreadable": 2, "outside_window": 2, "replayed": 2}


def test_a_sample_takes_whole_sessions_and_the_same_ones_again() -> None:
    rows = [row(at, f"{at % 100}") for at in range(300)]
    half, again, other = (replay(rows, sample=0.5, seed=seed) for seed in (1, 1, 2))
    sessions = [program.session_key for _, program in half.of_group(0).recorded()]
    assert 90 < len(sessions) < 210
    assert {sessions.count(session) for session in sessions} == {3}
    assert times(half) == times(again) != times(other)
    assert half.counts.sampled_out + half.counts.replayed == 300


def test_more_requests_than_asked_for_are_left_out() -> None:
    replayed = replay([row(1, "a"), row(2, "a", after=0), row(3, "b"), row(4, "b", after=0)], requests_max=3)
    assert [len(program.steps) for _, program in replayed.of_group(0).recorded()] == [2, 1]
    assert counts(replayed) == {"rows": 6, "unreadable": 2, "over_requests_max": 1, "replayed": 3}


def test_what_is_cut_is_counted() -> None:
    rows = [row(1), row(2, tokens=40), row(3, after=0, think_s=50.0)]
    replayed = replay(rows, input_tokens_max=50, output_tokens_max=4, pause_s_max=5.0)
    steps = [step for _, program in replayed.of_group(0).recorded() for step in program.steps]
    assert sorted(step.passage.tokens for step in steps if step.passage) == [40, 50, 50]
    assert {step.output_tokens for step in steps} == {4}
    assert max(step.think_s for step in steps) == 5
    assert counts(replayed) == {
        "rows": 5,
        "unreadable": 2,
        "replayed": 3,
        "inputs_cut": 2,
        "input_tokens_cut": 100,
        "outputs_cut": 3,
        "output_tokens_cut": 18,
        "pauses_cut": 1,
    }


def test_scaled_tokens_keep_the_blocks() -> None:
    ((_, program),) = replay([row(1, tokens=128)], scale_tokens=0.25).of_group(0).recorded()
    passage = program.steps[0].passage
    assert passage is not None
    assert (passage.block_tokens, passage.tokens, passage.blocks, program.steps[0].output_tokens) == (16, 32, 1, 2)


def test_sessions_stay_together_and_groups_get_their_share() -> None:
    rows = [row(at, f"{at % 400}") for at in range(800)]
    replayed = replay(rows, ReplayGroup("us", 3.0), ReplayGroup("eu", 1.0))
    sessions = [
        [program.session_key.split("/")[1] for _, program in replayed.of_group(number).recorded()] for number in (0, 1)
    ]
    assert not set(sessions[0]) & set(sessions[1])
    assert len(sessions[0]) + len(sessions[1]) == 800
    assert 0.65 < len(sessions[0]) / 800 < 0.85


def test_regions_that_a_trace_names_are_kept() -> None:
    rows = [row(1, "a", region="eu"), row(2, "b", region="us"), row(3, "c", region="ap"), row(4, "d", region="us")]
    replayed = replay(rows, ReplayGroup("us", 1.0), ReplayGroup("eu", 99.0))
    assert (times(replayed, 0), times(replayed, 1)) == ([2, 4], [1])
    assert counts(replayed)["elsewhere"] == 1


def test_a_shifted_group_comes_earlier_and_the_beginning_at_the_end() -> None:
    rows = [row(at, f"{at}") for at in (0, 10, 40, 60)]
    assert times(replay(rows, ReplayGroup("us", shift_s=20.0), until_s=100.0)) == [20, 40, 80, 90]


def test_another_seed_has_other_texts() -> None:
    (one, _), (other, _) = (
        [program.steps[0].passage for _, program in replay([row(1), row(2)], seed=seed).of_group(0).recorded()]
        for seed in (1, 2)
    )
    assert one is not None
    assert other is not None
    assert one.text() != other.text()


def test_blocks_are_shared_between_sessions_unless_they_are_a_sessions_own() -> None:
    for space, shares in (("", True), ("s", False)):
        replayed = replay([row(1, space=space)])
        one, other = (next(replayed.of_group(0).programs(user)).steps[0].passage for user in ("us/0", "us/1"))
        assert one is not None
        assert other is not None
        assert (one.text()[: 64 * 4] == other.text()[: 64 * 4]) is shares
        assert one.text() != other.text()


def test_a_user_goes_through_all_sessions_and_begins_again() -> None:
    replayed = replay([row(at, f"{at}") for at in range(5)])
    ids = [program.program_id for program in islice(replayed.of_group(0).programs("us/3"), 10)]
    assert len(set(ids)) == 10
    rounds = [{each.rsplit("/", 1)[1] for each in half} for half in (ids[:5], ids[5:])]
    assert rounds[0] == rounds[1] == set("01234")
    assert ids == [program.program_id for program in islice(replayed.of_group(0).programs("us/3"), 10)]


def test_a_user_without_sessions_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        next(replay([]).of_group(0).programs("us/0"))
