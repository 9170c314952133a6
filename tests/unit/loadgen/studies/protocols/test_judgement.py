"""Gains are ratios to the strongest baseline of the same way, seed by seed, and are held against the paper's."""

from __future__ import annotations

import pytest

from loadgen.studies.protocols import judgement, plan
from tests.support.protocol_runs import record

CASE = plan.Case(plan.MOONCAKE, plan.REPLAY, 16, 0.0)


def test_a_gain_is_held_against_the_trace_of_its_kind() -> None:
    kept = record()
    ours = judgement.gain(kept, CASE, plan.BR_0, at_once=False)
    assert ours.divided.median == pytest.approx(10.0)
    assert ours.faster.median == pytest.approx(1.3)
    assert (ours.aims, ours.is_reached) == ((4.1, 1.11), True)
    azure = plan.Case(plan.AZURE, plan.REPLAY, 16, 0.0)
    assert judgement.gain(kept, azure, plan.BR_0, at_once=False).aims == (1.94, 1.076)


def test_baselines_at_once_and_from_the_pool_are_compared_apart() -> None:
    kept = record()
    at_once, pooled = (judgement.gain(kept, CASE, plan.ORACLE, way) for way in (True, False))
    assert at_once.strongest in plan.AT_ONCE
    assert pooled.strongest in plan.POOLED
    assert at_once.faster.median == pytest.approx(1.3 * 800 / 820)


def test_one_gain_of_two_is_not_both() -> None:
    limited = judgement.gain(record(), plan.Case(plan.MOONCAKE, plan.REPLAY, 16, 0.75), plan.BR_0, at_once=False)
    assert (limited.is_divided, limited.is_faster, limited.is_reached) == (True, False, False)


def test_every_run_is_compared_in_every_way_there_is() -> None:
    ways = sum(len(judgement.ways(case)) for case in plan.cases())
    assert len(list(judgement.gains(record()))) == ways * len(plan.OURS)


def test_slower_runs_are_those_with_less_than_99_of_100_tokens() -> None:
    found = list(judgement.slower(record()))
    assert {each.case.room_share for each in found} == {0.75}
    assert len(found) == len(plan.OURS) * sum(bool(case.room_share) for case in plan.cases())
    assert found[0].faster.median == pytest.approx(0.9 * 800 / 820)


def test_runs_are_the_same_where_gap_and_tokens_are() -> None:
    kept = record()
    br_0, survival = kept.runs(CASE, plan.BR_0), kept.runs(CASE, plan.SURVIVAL)
    assert judgement.same_runs(br_0, survival) == 2
    assert judgement.same_runs(br_0, kept.runs(CASE, plan.JSQ_POOLED)) == 0
