from __future__ import annotations

from gateway.features.leaving.status import LeavingReplica, LeavingView, page_table

SOON = LeavingReplica("r0", "2026-03-01T12:00:00Z", "who-drain", 3, is_overdue=False)
OVERDUE = LeavingReplica("r1", "2026-03-01T11:00:00Z", "kubernetes", 0, is_overdue=True)


def test_only_a_replica_that_outlives_its_notice_is_a_problem() -> None:
    assert list(LeavingView([SOON]).problems()) == []
    (problem,) = LeavingView([SOON, OVERDUE]).problems()
    assert (problem.subject, problem.runbook) == ("r1", "NightsideReplicaOverdue")
    assert "was to leave by 2026-03-01T11:00:00Z" in problem.text


def test_there_is_no_table_while_none_leaves() -> None:
    assert list(LeavingView([]).tables()) == []
    assert page_table(LeavingView([]), {}) is None


def test_a_table_has_a_row_for_each() -> None:
    (table,) = LeavingView([SOON, OVERDUE]).tables()
    assert table.row_count == 2
    shown = page_table(LeavingView([SOON, OVERDUE]), {"r0": 7, "r1": 5})
    assert shown is not None
    assert shown.rows == [("r0", "who-drain", 7, 3), ("r1", "kubernetes", 5, 0)]
