"""Findings are counted from the figures, so that a run with other figures writes others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.studies.protocols import findings, judgement, plan
from loadgen.studies.protocols.page import page_of
from loadgen.studies.protocols.record import ProtocolRecord, key_of
from tests.support.protocol_runs import LOADS, record

CASE = plan.CROSS_CASES[0]


def changed(
    kept: ProtocolRecord, case: plan.Case, contender: plan.Contender, at: tuple[int, float], **rows: float
) -> ProtocolRecord:
    """The record with other figures of one run, multiplied by these."""
    key = key_of(case, contender, at)
    row = dict(kept.rows[key])
    row |= {name: [times * value for value in row[name]] for name, times in rows.items()}
    return replace(kept, rows={**kept.rows, key: row})


def test_comparisons_are_counted_by_protocol_and_cache() -> None:
    counted = {each.title: each for each in findings.reached_by_protocol(list(judgement.gains(record())))}
    assert len(counted) == sum(len(each.rooms) for each in plan.PROCEDURES)
    backlog = counted[f"{plan.READING_BACKLOG.title}, unlimited caches"]
    assert (backlog.comparisons, backlog.divided, backlog.faster, backlog.both) == (36, 36, 36, 36)
    assert counted[f"{plan.READING_BACKLOG.title}, limited caches"].both == 0


def test_what_the_pool_alone_gains_has_a_lowest_and_a_highest() -> None:
    found = findings.pool_alone(record())
    assert found is not None
    assert found == pytest.approx((800 / 820, 800 / 820))
    other = changed(record(), plan.cases()[0], plan.JSQ_POOLED, (48, 0.9), tokens_per_s=1.1)
    assert findings.pool_alone(other) == pytest.approx((800 / 820, 1.1 * 800 / 820))


def test_a_predictor_that_foresees_next_to_nothing_is_told() -> None:
    kept = record()
    assert findings.foreseen_by(kept, plan.SURVIVAL).silent == 0
    other = changed(kept, CASE, plan.SURVIVAL, (48, 0.9), foreseen_share=0.01)
    found = findings.foreseen_by(other, plan.SURVIVAL)
    assert (found.silent, found.cases, found.as_br_0) == (1, len(plan.cases()), found.runs)
    assert f"foreseen in 1 of {found.cases} cases" in page_of(other, LOADS)


def test_the_cross_has_its_best_and_its_worst() -> None:
    worst, best = (192, 1.0), (24, 0.9)
    other = changed(record(), CASE, plan.ORACLE, worst, gap=2.0, tokens_per_s=0.9)
    other = changed(other, CASE, plan.ORACLE, best, gap=0.5, tokens_per_s=1.1)
    widest, narrowest, fastest, slowest = findings.cross_extremes(other, CASE, plan.ORACLE)
    assert (widest.at, narrowest.at, fastest.at, slowest.at) == (best, worst, best, worst)
    assert (widest.gain, narrowest.gain) == pytest.approx((20.0, 5.0))


def test_tokens_that_a_run_holds_are_compared_seed_by_seed() -> None:
    kept = changed(record(), plan.cases()[0], plan.ORACLE, (48, 0.9), mean=0.8)
    assert findings.held(kept, next(judgement.gains(kept))).median == pytest.approx(0.8)


def test_by_weight_a_run_of_lighter_requests_gains_nothing() -> None:
    """The run has a tenth more tokens, of a tenth more requests in the same cache."""
    case = plan.FULL_CASES[0]
    plain = changed(record(), case, plan.BR_0, (48, 0.9), tokens_per_s=1 / 0.9)
    lighter = changed(record(), case, plan.BR_0, (48, 0.9), tokens_per_s=1.1 / 0.9, running=1.1)
    for kept in (plain, lighter):
        assert findings.held_at_work(kept, case, plan.BR_0).median == pytest.approx(1.0)


def test_slower_runs_with_limited_caches_are_counted() -> None:
    assert findings.limited(list(judgement.slower(record()))) == len(list(judgement.slower(record())))


def test_runs_that_hold_as_much_as_the_baseline_are_counted() -> None:
    kept = record()
    gains = list(judgement.gains(kept))
    lighter = changed(kept, CASE, plan.ORACLE, (48, 0.9), mean=0.94)
    assert findings.holding_enough(kept, gains) - findings.holding_enough(lighter, gains) == 1


def test_gains_without_a_longer_run_are_counted_by_load() -> None:
    """No longer run is planned on reasoning, and on the others none in the steady state or with limited caches."""
    gains = list(judgement.gains(record()))
    found = findings.without_longer(record(), gains)
    assert found["reasoning"] == sum(each.case.load is plan.REASONING for each in gains)
    steady_or_limited = [each for each in gains if each.case.procedure is plan.STEADY or each.case.room_share]
    assert found["Mooncake"] == sum(each.case.load is plan.MOONCAKE for each in steady_or_limited)
