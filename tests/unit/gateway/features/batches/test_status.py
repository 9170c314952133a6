from __future__ import annotations

from msgspec.structs import replace

from gateway.features.batches.status import BatchesView, BatchView

VIEW = BatchesView(
    batches=[BatchView("batch_1", "acme", "in_progress", 100, 40, 5_400, 7_200)], left_out=2, at_risk=0, stopped=0
)


def test_a_problem_leads_to_its_alert() -> None:
    assert list(VIEW.problems()) == []
    told = list(replace(VIEW, at_risk=3, stopped=1).problems())
    assert [(each.kind, each.runbook) for each in told] == [
        ("batches_stopped", "NightsideBatchesStuck"),
        ("batches_at_risk", "NightsideBatchesAtRisk"),
    ]
    assert told[1].text.startswith("3 batches")


def test_batches_are_a_table_with_their_expected_ends() -> None:
    (table,) = VIEW.tables()
    assert [str(next(iter(column.cells))) for column in table.columns] == [
        "batch_1",
        "acme",
        "in_progress",
        "100",
        "40",
        "1.5 h",
        "2.0 h",
    ]
    assert table.caption == "and 2 more"
    assert list(replace(VIEW, batches=[]).tables()) == []
    (unknown,) = replace(VIEW, batches=[replace(VIEW.batches[0], expected_in_s=None)]).tables()
    assert str(next(iter(unknown.columns[5].cells))) == "unknown"
