"""Reasons for missed targets, or that the reason is unknown."""

from __future__ import annotations

from loadgen.studies.placement.plan import evaluation
from loadgen.studies.placement.reasons import REASONS, ReasonClass, reason_of


def test_the_first_that_is_about_a_point_is_its_reason() -> None:
    told = (ReasonClass(("skewed, 9",), "few"), ReasonClass(("skewed", "other"), "many"))
    assert [reason_of(point, told) for point in ("skewed, 9 replicas", "skewed day", "other")] == [
        "few",
        "many",
        "many",
    ]
    assert reason_of("another", told) == "Why is not known."


def test_each_is_about_a_workload_that_is_played() -> None:
    played = {point.name for series in evaluation(None).series for point in series.experiment.points}
    recorded = ("agentic",)  # points of a trace that is not there
    for each in REASONS:
        for begins in each.begins:
            assert begins.startswith(recorded) or any(point.startswith(begins) for point in played), begins
