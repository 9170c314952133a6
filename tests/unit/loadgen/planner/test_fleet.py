from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.planner.cited import LLAMA_3_70B_A100, LLAMA_31_8B_L4
from loadgen.planner.fleet import (
    SeatCounting,
    Sizing,
    closed_form,
    fewest,
    savings,
    slots_of,
    thresholds_below,
    throughput,
    work_of,
)
from loadgen.planner.lengths import RequestShape, lengths_of, recorded

MIX = lengths_of([(RequestShape(900, 100), 0.9), (RequestShape(20_000, 2_000), 0.1)])


def test_the_closed_form_is_the_paper_s() -> None:
    assert closed_form(0.8, 4) == pytest.approx(0.6)
    assert closed_form(0.7, 2) == pytest.approx(0.35)
    assert closed_form(0.5, 1) == 0


def test_throughput_is_slots_over_service_time() -> None:
    """Appendix A's calibration: 290 iterations on 16 slots make 3.0 requests a second."""
    work = work_of(lengths_of([(RequestShape(512, 289), 1.0)]), 512)
    assert work.iterations == 290
    assert throughput(LLAMA_3_70B_A100, 16, work) == pytest.approx(16 / (290 * 0.0184))


def test_prefill_that_costs_by_the_token_slows_everybody() -> None:
    """Steady state: n = λ · iterations · t, and t = (W + H n) / (1 − λ c L_in)."""
    work = work_of(lengths_of([(RequestShape(1_000, 100), 1.0)]), 512)
    rate, cost = throughput(LLAMA_31_8B_L4, 20, work), LLAMA_31_8B_L4.cost
    busy = 1 - rate * cost.prefill_token_ns * 1_000 / 1e9
    assert rate * work.iterations * (cost.base_ns + 20 * cost.sequence_ns) / 1e9 / busy == pytest.approx(20)


def test_pools_share_the_rate_and_the_formula_adds_them_up() -> None:
    sizing = Sizing(LLAMA_3_70B_A100, MIX, 1_000.0, SeatCounting.RESERVED)
    split = sizing.split(8_192)
    assert split.short.share == pytest.approx(0.9)
    assert split.short.rate_per_s == pytest.approx(900)
    assert split.long.rate_per_s == pytest.approx(100)
    assert (split.short.slots, split.long.slots) == (128, 16)
    assert split.short.throughput_per_s == pytest.approx(128 / (102 * 0.0912))
    assert split.long.throughput_per_s == pytest.approx(16 / (2_040 * 0.0184))
    assert split.instances == (split.short.instances or 0) + (split.long.instances or 0)
    assert split.short.instances == -(-1.05 * 900 // split.short.throughput_per_s)
    assert split.gain is not None
    assert split.closed_form == pytest.approx(0.9 * (1 - 1 / split.gain))


def test_a_pool_for_nobody_needs_nothing() -> None:
    split = Sizing(LLAMA_3_70B_A100, MIX, 10.0, SeatCounting.RESERVED).split(32_768)
    assert split.long.instances == 0
    assert split.long.share == 0


def test_paged_slots_are_no_fewer_and_hold_what_is_likely() -> None:
    work = work_of(MIX, 512)
    paged = slots_of(LLAMA_3_70B_A100, 65_536, work, SeatCounting.PAGED)
    assert 16 < paged <= 128
    assert paged * work.held_tokens < LLAMA_3_70B_A100.kv_tokens
    short = work_of(recorded([RequestShape(100, 10)]), 512)
    assert slots_of(LLAMA_3_70B_A100, 8_192, short, SeatCounting.PAGED) == 128


def test_what_does_not_fit_has_no_size() -> None:
    tight = replace(LLAMA_3_70B_A100, kv_blocks=None)
    assert Sizing(tight, MIX, 10.0, SeatCounting.RESERVED).homogeneous().instances is None
    assert savings(None, 10) is None
    assert savings(3, None) is None


def test_the_fewest_instances_win_and_of_equal_ones_the_smallest_threshold() -> None:
    assert fewest([(1_024, 9), (2_048, 7), (4_096, 7), (8_192, None)]) == 2_048
    assert fewest([(1_024, None)]) is None


def test_thresholds_are_powers_of_two_below_the_window() -> None:
    assert thresholds_below(16_384) == [1_024, 2_048, 4_096, 8_192]
