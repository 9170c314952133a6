from __future__ import annotations

import pytest
from rich.console import Console

from gateway.features.disaggregated.status import DecodePoolView, DisaggregatedView, PredictorView
from mesh.problems import Runbook

VIEW = DisaggregatedView(
    [
        DecodePoolView("chat", "br_h", "predictor", [], PredictorView("exact_match", 3, "")),
        DecodePoolView("code@eu-1", "br_0", "default", ["/a/eldr.json"]),
    ]
)


def test_each_pools_policy_and_what_chose_it_are_shown() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        for table in VIEW.tables():
            console.print(table)
    rows = [line.split() for line in shown.get().splitlines()]
    assert ["chat", "br_h", "predictor", "exact_match", "3"] in rows
    assert ["code@eu-1", "br_0", "default"] in rows


@pytest.mark.parametrize(
    ("predictor", "why"),
    [
        (None, "it has no predictor"),
        (PredictorView("learned", 2, "a.json: there is no such file"), "a.json: there is no such file"),
        (PredictorView("learned", 2, ""), "its predictor is too old or unusable"),
        (PredictorView("learned", 0, ""), "no predictor has been fitted yet"),
    ],
)
def test_a_pool_that_runs_without_its_predictor_is_a_problem(predictor: PredictorView | None, why: str) -> None:
    view = DisaggregatedView([DecodePoolView("chat", "br_h", "description", [], predictor, is_degraded=True)])
    (problem,) = view.problems()
    assert problem.text == f"pool chat runs as br_0 instead of br_h: {why}"
    assert (problem.subject, problem.runbook) == ("chat", "NightsideDecodeDegraded")


def test_a_file_that_may_not_be_read_is_a_problem() -> None:
    (problem,) = VIEW.problems()
    assert "pool code@eu-1 is served without /a/eldr.json" in problem.text
    assert problem.runbook is Runbook.REPLICAS_LEFT_OUT
