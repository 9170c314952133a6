"""Clauses of predictions name runs of the plan and figures that are known, and are counted by their bounds."""

from __future__ import annotations

import pytest

from loadgen.studies.protocols import plan
from loadgen.studies.protocols.clauses import CLAUSES, Clause, verdicts
from loadgen.studies.protocols.plan import Case
from loadgen.studies.protocols.record import ProtocolRecord
from tests.support.protocol_runs import record
from tests.unit.loadgen.studies.protocols.test_findings import changed

USUAL = (48, 0.9)
CASE = plan.FULL_CASES[0]


@pytest.mark.parametrize(
    "clauses, cases",
    [(CLAUSES.first, plan.cases()), (CLAUSES.longer, plan.LONG_CASES), (CLAUSES.full, plan.FULL_CASES)],
)
def test_every_clause_is_counted_or_struck(clauses: list[Clause], cases: list[Case]) -> None:
    for each in verdicts(record(), clauses, cases):
        assert bool(each.runs) is not bool(each.clause.struck), each.clause.says
        assert bool(each.clause.measure) is not bool(each.clause.struck), each.clause.says


def kept(changed_record: ProtocolRecord, clause: Clause) -> int:
    (found,) = verdicts(changed_record, [clause], [CASE])
    assert found.runs == (1 if clause.contenders else len(plan.LONG_OURS))
    return found.kept


@pytest.mark.parametrize(
    "measure, inside, outside",
    [
        ("faster", {"tokens_per_s": 1 / 0.9}, {"tokens_per_s": 1.2}),
        ("divided", {"gap": 10.0}, {"gap": 5.0}),
        ("weighed", {"tokens_per_s": 1 / 0.9}, {"tokens_per_s": 1 / 0.9, "running": 1.1}),
        ("held", {}, {"mean": 0.9}),
        ("running", {"running": plan.WORKERS * CASE.batch / 80.0}, {}),
        ("is_divided", {}, {"gap": 10.0}),
        ("best", {"tokens_per_s": 1 / 0.9}, {}),
        ("nearer", {"tokens_per_s": 1 / 0.9}, {}),
    ],
)
def test_a_run_is_as_a_clause_says_while_its_figure_is_within_the_bounds(
    measure: str, inside: dict[str, float], outside: dict[str, float]
) -> None:
    clause = Clause("one", measure, least=0.99, most=1.01, contenders=["BR-0"])
    assert kept(changed(record(), CASE, plan.BR_0, USUAL, **inside), clause) == 1
    assert kept(changed(record(), CASE, plan.BR_0, USUAL, **outside), clause) == 0


def test_of_some_runs_one_is_enough() -> None:
    other = changed(record(), CASE, plan.BR_0, USUAL, tokens_per_s=1 / 0.9)
    for is_some in (True, False):
        (found,) = verdicts(other, [Clause("one", "faster", least=0.99, is_some=is_some)], [CASE])
        assert (found.runs, found.kept, found.holds) == (len(plan.LONG_OURS), 1, is_some)
