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
    EngineModel,
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


def played(model: EngineModel) -> list[EngineOutput]:
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


def test_a_request_waits_for_the_reserve_until_the_batch_shrinks() -> None:
    """12 blocks are 192 tokens. The first request's prompt takes 64, and all of its 60 tokens to come are kept free: 68
    are left, and the second needs 80. vLLM looks at prompts alone."""
    asked = ("a", 64, 61), ("b", 50, 30)
    outputs = played(begun(*asked, config=replace(CONFIG, reservation=replace(RULES, ratio_first=1.0))))
    admitted = {each.request_id: each.at_ns for each in outputs if isinstance(each, Admitted)}
    finished = {each.request_id: each.at_ns for each in outputs if isinstance(each, Finished)}
    assert (admitted["a"], admitted["b"]) == (0, finished["a"])
    careless = engine_model(replace(CONFIG, reservation=None))
    for name, prompt, output in asked:
        careless.submit(EngineRequest(name, prompt, output), 0)
    assert [each.at_ns for each in played(careless) if isinstance(each, Admitted)][1] < 10_000


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


def test_the_ratio_falls_with_each_iteration_of_tokens_and_rises_with_a_retraction() -> None:
    model = begun(("a", 8, 30))
    model.advance(1_180)
    assert model.ratio == 0.5, "prompts do not count"
    model.advance(1_180 + 10 * 1_100)
    assert model.ratio == pytest.approx(0.5 - 10 * 0.01)
    model.submit(EngineRequest("b", 60, 60), 20_000)
    model.submit(EngineRequest("c", 48, 40), 20_000)
    model.submit(EngineRequest("d", 40, 30), 20_000)
    ratios = [model.ratio]
    while (at_ns := model.next_change_ns()) is not None:
        if any(isinstance(each, Preempted) for each in model.advance(at_ns)):
            assert model.ratio > ratios[-1]
            return
        ratios.append(model.ratio)
    raise AssertionError("nothing was retracted")


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


def test_the_last_of_the_batch_goes_back_too_where_others_hold_the_blocks() -> None:
    model = begun(("a", 30, 100), config=replace(CONFIG, reservation=replace(RULES, ratio_first=0.1)))
    model.advance(3_000)
    model.submit(EngineRequest("b", 112, 1, is_remote=True), 3_000)
    outputs: list[EngineOutput] = []
    while (at_ns := model.next_change_ns()) is not None:
        outputs += model.advance(at_ns)
    assert [each.request_id for each in outputs if isinstance(each, Preempted)] == ["a"]
    model.deliver("b", 100_000, has_come=True)
    outputs += played(model)
    assert [each.request_id for each in outputs if isinstance(each, Finished)] == ["b", "a"]


def test_a_prompt_of_which_all_but_one_token_is_cached_does_not_stop_the_others_for_long() -> None:
    config = replace(CONFIG, stream_every_iteration=False)
    model = begun(("a", 8, 40), config=config)
    names = bytes(range(8)) + bytes(range(8, 16))
    model.submit(EngineRequest("b", 32, 1, names), 0)
    played_first = model.advance(4_000)
    assert any(isinstance(each, Finished) for each in played_first)
    model.submit(EngineRequest("c", 33, 20, names), 5_000)
    finished = [each for each in played(model) if isinstance(each, Finished)]
    assert [each.request_id for each in finished] == ["c", "a"]
    alone = begun(("a", 8, 40), config=config)
    longer_ns = finished[1].at_ns - next(each.at_ns for each in played(alone) if isinstance(each, Finished))
    assert longer_ns < 10_000
