from __future__ import annotations

import pytest

from loadgen.engine.model import EngineModel, Finished, FirstTokenMade
from loadgen.engine.presets import LLAMA_31_8B_L4, PRESETS, TOKEN_BUDGET_A100
from loadgen.engine.sequences import EngineRequest

MS = 1_000_000


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_runs_its_longest_request(name: str) -> None:
    config = PRESETS[name]
    model = EngineModel(config)
    model.submit(EngineRequest("long", config.context_tokens_max - 100, 100), 0)
    outputs = []
    while (at_ns := model.next_change_ns()) is not None:
        outputs += model.advance(at_ns)

    assert isinstance(outputs[-1], Finished)
    assert model.load().preemptions == 0


def test_512_tokens_on_an_l4_take_the_300_ms_of_the_paper() -> None:
    model = EngineModel(LLAMA_31_8B_L4)
    model.submit(EngineRequest("a", 512, 1), 0)
    first = next(out for out in model.advance(1_000 * MS) if isinstance(out, FirstTokenMade))

    assert first.at_ns == pytest.approx(300 * MS, rel=0.01)


@pytest.mark.parametrize(("tokens_each", "running"), [(704, 50), (1_760, 20)])
def test_an_l4_holds_20_to_50_requests(tokens_each: int, running: int) -> None:
    model = EngineModel(LLAMA_31_8B_L4)
    for index in range(60):
        model.submit(EngineRequest(str(index), tokens_each - 8, 8), 0)
    most = 0
    while (at_ns := model.next_change_ns()) is not None:
        model.advance(at_ns)
        most = max(most, model.load().running)

    assert most <= running
    assert LLAMA_31_8B_L4.kv_tokens // tokens_each == running


@pytest.mark.parametrize(("active", "iteration_ms"), [(16, 18.4), (128, 91.2)])
def test_iterations_of_the_token_budget_paper(active: int, iteration_ms: float) -> None:
    model = EngineModel(TOKEN_BUDGET_A100)
    for index in range(active):
        model.submit(EngineRequest(str(index), 1, 3), 0)
    model.advance(0)

    assert model.next_change_ns() == iteration_ms * MS
