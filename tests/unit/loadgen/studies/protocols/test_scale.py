"""Measures of a load."""

from __future__ import annotations

from loadgen.studies.balanceroute.loads import PrefilledRequest
from loadgen.studies.protocols.scale import scale_of


def test_a_load_is_measured_by_what_workers_hold() -> None:
    found = scale_of([PrefilledRequest(100, 10), PrefilledRequest(200, 30)])
    assert (found["requests"], found["prompt_mean"], found["answer_mean"], found["longest"]) == (2, 150, 20, 230)
    assert (found["prompt_variation"], found["answer_variation"]) == (0.33, 0.5)
    assert found["held_mean"] == round((10 * 105 + 30 * 215) / 40)
    assert found["prompt_share"] == round(175 / 187.5, 3)
    assert found["rooms"] == {"16": 2400, "32": 4800, "64": 9600}
