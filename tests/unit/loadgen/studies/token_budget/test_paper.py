"""The paper's loads, rebuilt from its published figures, give its published results."""

from __future__ import annotations

import pytest

from loadgen.planner.cited import LLAMA_3_70B_A100
from loadgen.planner.fleet import SeatCounting, Sizing
from loadgen.studies.token_budget.paper import AZURE, LMSYS, LOADS, RATE_PER_S, THRESHOLD, PaperLoad


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_fleets_by_formula_are_table_2_s_within_two_percent(load: PaperLoad) -> None:
    sizing = Sizing(LLAMA_3_70B_A100, load.lengths(), RATE_PER_S, SeatCounting.RESERVED)
    whole, split = sizing.homogeneous(), sizing.split(THRESHOLD)
    assert whole.instances == pytest.approx(load.homogeneous, rel=0.02)
    assert split.short.instances == pytest.approx(load.short, rel=0.02)
    assert split.long.instances == pytest.approx(load.long, abs=2)
    assert 1 - (split.instances or 0) / (whole.instances or 1) == pytest.approx(load.savings, abs=0.005)


def test_shares_and_means_are_those_that_it_tells() -> None:
    azure, lmsys = AZURE.lengths(), LMSYS.lengths()
    assert azure.share_up_to(2_048) == pytest.approx(0.80, abs=0.001)
    assert azure.share_up_to(8_192) == pytest.approx(0.917, abs=0.001)
    assert lmsys.mean(lambda each: each.prompt_tokens) == pytest.approx(69.5, rel=0.02)
    assert lmsys.mean(lambda each: each.output_tokens) == pytest.approx(214.5, rel=0.02)
    assert sum(step.share for step in AZURE.steps) == pytest.approx(1.0, abs=0.001)
    assert sum(step.share for step in LMSYS.steps) == pytest.approx(1.0, abs=0.001)


def test_figure_6_rises_for_azure_and_peaks_for_lmsys() -> None:
    saved = {}
    for load in LOADS:
        sizing = Sizing(LLAMA_3_70B_A100, load.lengths(), RATE_PER_S, SeatCounting.RESERVED)
        whole = sizing.homogeneous().instances or 1
        saved[load.name] = [1 - (sizing.split(2**power).instances or 0) / whole for power in range(10, 16)]
    azure, lmsys = saved[AZURE.name], saved[LMSYS.name]
    assert azure[:5] == sorted(azure[:5])
    assert min(azure[4:]) > 0.19
    assert max(lmsys) == pytest.approx(max(lmsys[2:4]))
    assert lmsys[5] < lmsys[4] < lmsys[3]
