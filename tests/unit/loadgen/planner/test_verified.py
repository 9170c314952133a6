from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.engine.presets import TINY
from loadgen.planner.lengths import RequestShape, recorded
from loadgen.planner.verified import Carried, Slo, Trial, carried, play, poisson

ENGINE = replace(TINY, report_tokens=False)
LENGTHS = recorded([RequestShape(100, 20), RequestShape(200, 10)])
TRIAL = Trial(instances=2, requests_min=200, requests_max=300, rounds=4)
LOOSE = Slo(ttft_s=5.0, tpot_ms=500.0)


def test_of_one_seed_the_same_requests_come_at_every_rate() -> None:
    slow, fast = (list(poisson(LENGTHS, rate, 50, seed=3)) for rate in (1.0, 2.0))
    assert [each.shape for each in slow] == [each.shape for each in fast]
    assert [round(each.at_ns / 2) for each in slow] == pytest.approx([each.at_ns for each in fast], abs=2)


def test_an_idle_engine_takes_what_its_iterations_take() -> None:
    played = play(ENGINE, poisson(recorded([RequestShape(100, 11)]), 0.1, 30, seed=1), 30, 1, LOOSE)
    prefill_ms, step_ms = 4 + 0.5 + 100 * 0.02, 4.5
    assert played.requests == 20, "the first third is not counted"
    assert played.ttft_p50_s == pytest.approx(prefill_ms / 1e3)
    assert played.tpot_p99_ms == pytest.approx(step_ms)
    assert (played.preemptions, played.rejections) == (0, 0)


def test_what_is_carried_meets_the_objectives_and_a_little_more_does_not() -> None:
    found = carried(ENGINE, LENGTHS, 200.0, Slo(ttft_s=0.2, tpot_ms=50.0), TRIAL)
    assert 0 < found.rate_per_s < 200
    assert found.played is not None
    assert found.played.meets(Slo(ttft_s=0.2, tpot_ms=50.0))
    assert found.limited_by == "TTFT: over 0.2 s for more than 1.00%"
    again = carried(ENGINE, LENGTHS, 200.0, Slo(ttft_s=0.2, tpot_ms=50.0), TRIAL)
    assert again == found


def test_an_objective_that_no_iteration_meets_carries_nothing() -> None:
    found = carried(ENGINE, LENGTHS, 50.0, Slo(ttft_s=5.0, tpot_ms=1.0), TRIAL)
    assert found == Carried(0.0, None, found.limited_by)
    assert found.limited_by.startswith("TPOT: over 1 ms")


def test_nobody_may_be_preempted() -> None:
    """Room for two long sequences, and slots for eight."""
    cramped = replace(ENGINE, kv_blocks=32, context_tokens_max=512)
    lengths = recorded([RequestShape(60, 190)])
    free = carried(replace(ENGINE, context_tokens_max=512), lengths, 8.0, LOOSE, TRIAL)
    found = carried(cramped, lengths, 8.0, LOOSE, TRIAL)
    assert found.rate_per_s < free.rate_per_s
    assert "preempted" in found.limited_by


def test_one_that_fits_nowhere_is_rejected() -> None:
    played = play(ENGINE, poisson(recorded([RequestShape(5_000, 1)]), 1.0, 10, seed=1), 10, 1, LOOSE)
    assert played.rejections == 1, "it stops there"
    assert played.why_not(LOOSE) == "1 rejected"


def test_each_of_two_pools_may_have_half_of_those_who_are_late() -> None:
    short, long = Slo().for_part(0.9), Slo().for_part(0.1)
    assert 0.9 * short.late_share + 0.1 * long.late_share == pytest.approx(0.01)
    assert Slo().for_part(0.001).late_share == pytest.approx(0.1)


def test_it_plays_as_many_as_slots_need_within_bounds() -> None:
    trial = Trial(instances=4, requests_min=1_500, requests_max=6_000)
    assert [trial.requests(slots) for slots in (1, 128, 1_000)] == [1_500, 3_072, 6_000]
