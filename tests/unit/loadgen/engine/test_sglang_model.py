"""An engine that schedules as SGLang does: prompts first, a reserve for tokens to come, retraction of the least
generated.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import (
    Admitted,
    EngineConfig,
    EngineOutput,
    Fetching,
    Finished,
    FirstTokenMade,
    NewTokenReservation,
    Preempted,
    TokensGenerated,
)
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import SglangModel, engine_model

RULES = NewTokenReservation(ratio_first=0.5, ratio_min=0.1, decay_iterations=40, retract_iterations=4)
CONFIG = EngineConfig(
    cost=LinearCost(base_ns=1_000, sequence_ns=100, prefill_token_ns=10),
    kv_blocks=12,
    context_tokens_max=160,
    sequences_max=4,
    batch_tokens_max=40,
    prefill_chunk_tokens=32,
    reservation=RULES,
    stream_every_iteration=True,
)


def begun(*requests: tuple[str, int, int], config: EngineConfig = CONFIG) -> SglangModel:
    """Engine that was sent requests (id, prompt and output tokens) at once."""
    model = engine_model(config)
    assert isinstance(model, SglangModel)
    for name, prompt, output in requests:
        model.submit(EngineRequest(name, prompt, output), 0)
    return model


def played(model: SglangModel) -> list[EngineOutput]:
    outputs: list[EngineOutput] = []
    while (at_ns := model.next_change_ns()) is not None:
        outputs += model.advance(at_ns)
    return outputs


def test_a_prompt_that_comes_stops_the_generation_of_others_for_its_iterations() -> None:
    model = begun(("a", 8, 10))
    model.advance(0)
    model.submit(EngineRequest("b", 40, 2), 1)
    outputs = played(model)
    a_first_ns = 1_100 + 8 * 10
    b_first_ns = a_first_ns + 1_100 + 32 * 10 + 1_100 + 8 * 10
    assert FirstTokenMade("b", b_first_ns) in outputs
    later = [each.at_ns for each in outputs if isinstance(each, TokensGenerated) and each.request_id == "a"]
    assert later[0] == b_first_ns + 1_200


def test_a_request_waits_for_the_reserve_and_not_only_for_room_for_its_prompt() -> None:
    """12 blocks are 192 tokens. The first request's prompt takes 64, and nearly all of its 60 tokens to come are kept
    free: 68 are left, and the second needs 80. Later the ratio has fallen."""
    rules = replace(RULES, ratio_first=1.0)
    outputs = played(begun(("a", 64, 61), ("b", 50, 30), config=replace(CONFIG, reservation=rules)))
    admitted = {each.request_id: each.at_ns for each in outputs if isinstance(each, Admitted)}
    finished = {each.request_id: each.at_ns for each in outputs if isinstance(each, Finished)}
    assert admitted["a"] == 0
    assert 10_000 < admitted["b"] < finished["a"]


def test_who_has_generated_least_is_retracted_and_waits_behind_the_others() -> None:
    rules = replace(RULES, ratio_first=0.1)
    model = begun(("a", 60, 60), config=replace(CONFIG, reservation=rules))
    model.advance(5_000)
    model.submit(EngineRequest("b", 48, 40), 5_000)
    model.submit(EngineRequest("c", 40, 30), 5_000)
    outputs = played(model)
    retracted = [each.request_id for each in outputs if isinstance(each, Preempted)]
    assert retracted
    assert "a" not in retracted
    assert {each.request_id for each in outputs if isinstance(each, Finished)} == {"a", "b", "c"}


def test_the_ratio_falls_with_each_iteration_to_its_least_and_rises_with_a_retraction() -> None:
    model = begun(("a", 8, 30))
    assert model.ratio == 0.5
    model.advance(1_180 + 10 * 1_100)
    assert model.ratio == pytest.approx(0.5 - 11 * 0.01)
    tight = begun(("a", 60, 60), ("b", 48, 40), config=replace(CONFIG, reservation=replace(RULES, ratio_first=0.1)))
    while not any(isinstance(each, Preempted) for each in tight.advance(tight.next_change_ns() or 0)):
        pass
    assert tight.ratio > 0.1


def test_an_idle_engine_starts_with_the_first_ratio_again() -> None:
    model = begun(("a", 8, 30))
    played(model)
    assert model.ratio == 0.5


def test_a_prompt_computed_elsewhere_is_fetched_and_its_answer_written_here() -> None:
    model = begun(("a", 8, 10))
    model.submit(EngineRequest("b", 40, 5, is_remote=True, lease_ns=1_000_000), 0)
    outputs = model.advance(5_000)
    assert [each.request_id for each in outputs if isinstance(each, Fetching)] == ["b"]
    model.deliver("b", 6_000, has_come=True)
    outputs += played(model)
    assert {each.request_id for each in outputs if isinstance(each, Finished)} == {"a", "b"}
    assert model.load().external_tokens == 40
    assert model.load().blocks_held == 0
