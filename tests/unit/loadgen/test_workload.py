"""The generator of conversations: one seed, one story; prompts that share what real prompts share."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice

import pytest

from loadgen.workload import Conversation, Message, MultiTurnWorkload, Spread, WorkloadConfig

TURNS = WorkloadConfig(turns=Spread(median=3, sigma=0.0, minimum=3, maximum=3))


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
    spread = Spread(median=60, sigma=1.0, minimum=20, maximum=200)
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
