"""Why an aim is missed, or that nobody knows."""

from __future__ import annotations

from loadgen.evaluation.placement.plan import evaluation
from loadgen.evaluation.placement.reasons import REASONS, Reason, reason_of


def test_the_first_that_is_about_a_point_is_its_reason() -> None:
    told = (Reason(("skewed, 9",), "few"), Reason(("skewed", "other"), "many"))
    assert [reason_of(point, told) for point in ("skewed, 9 replicas", "skewed day", "other")] == [
        "few",
        "many",
        "many",
    ]
    assert reason_of("another", told) == "Why is not known."


def test_each_is_about_a_workload_that_is_played() -> None:
    played = {series.title for series in evaluation(None).series}
    recorded = ("agentic",)  # of a trace that is not there
    for each in REASONS:
        for begins in each.begins:
            assert begins.startswith(recorded) or any(title.startswith(begins) for title in played), begins
