"""Raw data: every run by seed, and the same after a round trip through JSON."""

from __future__ import annotations

import json

from loadgen.studies.protocols import plan
from loadgen.studies.protocols.record import read_record, record_of
from tests.support.protocol_runs import FULL_SEEDS, LONG_SEEDS, SEEDS, figures_of, record


def test_a_record_is_the_same_after_json() -> None:
    before = record()
    after = read_record(json.loads(json.dumps(before.document())))
    assert after.rows == before.rows
    assert list(after.seeds) == list(SEEDS)


def test_runs_come_back_by_seed() -> None:
    case = plan.cases()[0]
    runs = record().runs(case, plan.JSQ_AT_ONCE)
    assert [run["gap"] for run in runs] == [figures_of(case.cell(plan.JSQ_AT_ONCE, seed))["gap"] for seed in SEEDS]


def test_the_cross_is_kept_and_shares_the_papers_place() -> None:
    kept = record()
    case = plan.CROSS_CASES[0]
    assert {key[6:] for key in kept.rows if key[4:6] == (1, plan.ORACLE.title)} == set(plan.CROSS)
    assert kept.runs(case, plan.ORACLE, (192, 1.0)) == kept.runs(case, plan.ORACLE)


def test_what_lacks_a_seed_is_left_out() -> None:
    case = plan.cases()[0]
    cells = [cell for cell in plan.all_cells(SEEDS) if cell != case.cell(plan.BR_0, SEEDS[1])]
    kept = record_of({cell: figures_of(cell) for cell in cells}, SEEDS, (), ())
    assert not kept.has(case)
    assert kept.has(plan.cases()[1])


def test_longer_runs_have_their_own_seeds() -> None:
    kept = record()
    case = plan.LONG_CASES[0]
    assert len(kept.runs(case, plan.ORACLE)) == len(LONG_SEEDS)
    assert kept.has(case)
    assert list(read_record(kept.document()).long_seeds) == list(LONG_SEEDS)


def test_runs_with_full_caches_have_their_own_seeds() -> None:
    kept = record()
    case = plan.FULL_CASES[0]
    assert len(kept.runs(case, plan.BR_0)) == len(FULL_SEEDS)
    assert list(read_record(kept.document()).full_seeds) == list(FULL_SEEDS)
