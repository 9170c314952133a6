"""The generator of conversations: one seed, one story; prompts that share what real prompts share."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice, pairwise
from statistics import mean, stdev

import pytest

from loadgen.workload import (
    BurstConfig,
    Bursts,
    Conversation,
    LengthSpread,
    Message,
    MixedWorkload,
    MultiTurnWorkload,
    RateCurve,
    TreeConfig,
    TreeOfThoughts,
    Workload,
    WorkloadConfig,
    arrivals,
    diurnal,
    steady,
)

TURNS = WorkloadConfig(turns=LengthSpread(median=3, sigma=0.0, minimum=3, maximum=3))


def first_conversation(user_id: str, *, seed: int = 7, config: WorkloadConfig = TURNS) -> Conversation:
    return next(MultiTurnWorkload(config, seed=seed).conversations(user_id))


def test_the_same_seed_and_user_say_the_same() -> None:
    one, other = MultiTurnWorkload(TURNS, seed=7), MultiTurnWorkload(TURNS, seed=7)
    next(other.conversations("somebody else"))
    assert list(islice(one.conversations("us/1"), 5)) == list(islice(other.conversations("us/1"), 5))


def test_another_seed_or_user_says_something_else() -> None:
    reference = first_conversation("us/1")
    assert first_conversation("us/1", seed=8).turns != reference.turns
    assert first_conversation("us/2").turns != reference.turns


def test_a_users_conversations_differ_but_share_their_opening() -> None:
    first, second = islice(MultiTurnWorkload(TURNS, seed=7).conversations("us/1"), 2)
    assert first.turns != second.turns
    assert first.conversation_id != second.conversation_id
    assert first.system_prompt == second.system_prompt


def test_users_of_one_application_share_its_prompt_and_no_more() -> None:
    config = WorkloadConfig(applications=1)
    one, other = (first_conversation(user, config=config).system_prompt for user in ("us/1", "eu/1"))
    shared = one[: one.index("About us/1")]
    assert len(shared.split()) > config.system_prompt_words
    assert other.startswith(shared)
    assert one != other


def test_applications_have_different_prompts() -> None:
    openings = {first_conversation(f"us/{user}").system_prompt[:60] for user in range(64)}
    assert len(openings) == TURNS.applications


def test_each_turn_is_sent_with_everything_said_before() -> None:
    conversation = first_conversation("us/1")
    questions = [turn.question for turn in conversation.turns]
    system = Message(role="system", content=conversation.system_prompt)
    first = conversation.messages([])
    third = conversation.messages(["one", "two"])
    assert first == [system, Message(role="user", content=questions[0])]
    assert [message["role"] for message in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in third[1:]] == [questions[0], "one", questions[1], "two", questions[2]]
    assert third[: len(first)] == first


def test_a_finished_conversation_has_no_next_turn() -> None:
    with pytest.raises(AssertionError):
        first_conversation("us/1").messages(["one", "two", "three"])


def test_a_spread_keeps_its_limits_and_its_median() -> None:
    spread = LengthSpread(median=60, sigma=1.0, minimum=20, maximum=200)
    rng = random.Random(1)
    draws = sorted(spread.draw_int(rng) for _ in range(2001))
    assert draws[0] == 20
    assert draws[-1] == 200
    assert 50 < draws[1000] < 70


def test_the_story_does_not_depend_on_pythons_hash_seed() -> None:
    code = (
        "from loadgen.workload import *; from hashlib import sha256; "
        "w = MultiTurnWorkload(WorkloadConfig(), seed=3); "
        "print(sha256(repr(next(w.conversations('us/1'))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_conversation_and_its_program_say_the_same() -> None:
    conversation = first_conversation("us/1")
    program = conversation.program()
    assert program.messages(0, {}) == conversation.messages([])
    assert program.messages(2, {0: "one", 1: "two"}) == conversation.messages(["one", "two"])
    assert program.children() == {0: [1], 1: [2]}


@pytest.mark.parametrize(("branches", "requests"), [(2, 15), (4, 85)])
def test_a_tree_has_as_many_requests_as_the_paper_says(branches: int, requests: int) -> None:
    config = TreeConfig(branches=branches)
    tree = next(TreeOfThoughts(config, seed=7).programs("us/1"))
    assert len(tree.steps) == config.requests == requests
    children = tree.children()
    assert tree.roots() == [0]
    assert {len(each) for each in children.values()} == {branches}
    depth = {0: 1}
    for number, step in enumerate(tree.steps[1:], start=1):
        assert step.after is not None
        depth[number] = depth[step.after] + 1
    assert max(depth.values()) == 4


def test_a_node_goes_on_from_its_ancestors_alone() -> None:
    tree = next(TreeOfThoughts(TreeConfig(), seed=7).programs("us/1"))
    said = tree.messages(4, {0: "root", 1: "left"})
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in said[2::2]] == ["root", "left"]


def test_trees_of_one_seed_share_their_instruction_and_nothing_else() -> None:
    one, other = islice(TreeOfThoughts(TreeConfig(), seed=7).programs("us/1"), 2)
    assert one.opening == other.opening
    assert one.steps != other.steps
    assert one.session_key != other.session_key


def test_a_burst_comes_at_once_under_one_key() -> None:
    burst = next(Bursts(BurstConfig(requests=9), seed=7).programs("us/1"))
    assert burst.roots() == list(range(9))
    assert len({step.think_s for step in burst.steps}) == 1
    assert len({step.text for step in burst.steps}) == 9


def test_a_mixture_draws_by_weight_and_repeats_itself() -> None:
    def kinds(seed: int) -> list[int]:
        parts: list[tuple[float, Workload]] = [
            (3.0, MultiTurnWorkload(TURNS, seed=7)),
            (1.0, TreeOfThoughts(TreeConfig(), seed=7)),
        ]
        return [len(program.steps) for program in islice(MixedWorkload(parts, seed=seed).programs("us/1"), 400)]

    assert kinds(1) == kinds(1) != kinds(2)
    assert 60 < kinds(1).count(15) < 140


def test_a_curve_is_straight_between_its_points_and_level_outside() -> None:
    curve = RateCurve(((10, 2), (20, 4)))
    assert [curve.rate_at(at_s) for at_s in (0, 10, 15, 20, 99)] == [2, 2, 3, 4, 4]
    assert curve.scaled(2).rate_at(15) == 6


def test_a_day_has_its_peak_in_the_afternoon_of_its_own_time_zone() -> None:
    day = diurnal(peak=10, trough=2, day_s=240, shift_hours=-5)
    rates = {hour: day.rate_at(hour * 10) for hour in range(24)}
    assert max(rates, key=rates.__getitem__) == 21
    assert max(rates.values()) == pytest.approx(10)
    assert min(rates.values()) == pytest.approx(2)


@pytest.mark.parametrize("variation", [0.0, 1.0, 2.0])
def test_arrivals_follow_the_curve_whatever_their_variation(variation: float) -> None:
    curve = RateCurve(((0, 0), (100, 40), (200, 0)))
    times = list(arrivals(curve, random.Random(7), until_s=200, variation=variation))
    assert times == sorted(times)
    assert len(times) == pytest.approx(4000, rel=0.1)
    assert sum(at_s < 50 for at_s in times) == pytest.approx(500, rel=0.25)


def test_a_larger_variation_is_burstier() -> None:
    def spread(variation: float) -> float:
        times = list(arrivals(steady(10), random.Random(7), until_s=1000, variation=variation))
        gaps = [late - early for early, late in pairwise(times)]
        return stdev(gaps) / mean(gaps)

    assert [spread(variation) for variation in (0.0, 1.0, 3.0)] == [
        pytest.approx(0, abs=1e-6),
        pytest.approx(1, rel=0.1),
        pytest.approx(3, rel=0.2),
    ]
