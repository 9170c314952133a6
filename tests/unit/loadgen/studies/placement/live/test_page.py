"""The page omits no failure and no lost run, pairs rounds, and reports other load on the machine."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.figures import Figures
from loadgen.studies.placement.live.page import page_of


def run(system: str, number: int, rate: float, wait_ms: float, **changes: Any) -> Figures:
    times = {"p50": wait_ms / 2, "p90": 3 * wait_ms, "mean": wait_ms}
    total = {
        "requests": 1_000,
        "failed": 0,
        "unfinished": 2,
        "requests_per_s": rate,
        "tokens_per_s": 200.0,
        "ttft_ms": times,
        "duration_ms": times,
        "cached_share": 0.75,
        "forwarded_share": None,
        "failures": {},
    }
    cpu = {"own_share": 0.2, "mean_share": 0.3, "peak_share": 1.0}
    found = {"case": "agentic", "system": system, "round": number, "total": total, "machine_cpu": cpu}
    return {**found, "lag_ms": {"p99": 4.2}, **changes}


def document(*runs: Figures, **changes: Any) -> Figures:
    names = ["nightside", "vllm-router"]
    return {
        "date": "2026-11-22",
        "command": "nightside results live",
        "machine": {"cores": 2},
        "rounds": 2,
        "seed": 1,
        "cases": [{"name": "agentic", "what": "sessions", "about": "Some agents.", "beside": ""}],
        "systems": [{"name": name, "what": f"what {name} is"} for name in names],
        "not_measured": {},
        "faults": [],
        "runs": list(runs),
        **changes,
    }


PAIRED = (
    run("nightside", 1, 20.0, 100.0),
    run("vllm-router", 1, 10.0, 400.0),
    run("vllm-router", 2, 20.0, 100.0),
    run("nightside", 2, 30.0, 50.0),
)


def test_figures_stand_beside_each_other_and_ratios_are_within_a_round() -> None:
    text = page_of(document(*PAIRED))
    assert "| requests/s | 25.00 (20.00–30.00) | 15.00 (10.00–20.00) |" in text
    assert "| hit rate | 75 % | 75 % |" in text
    assert "| forwarded | – | – |" in text
    assert "| unfinished | 4 | 4 |" in text
    assert "| vllm-router | × 1.75 (1.50–2.00) | × 0.38 (0.25–0.50) |" in text
    assert "**not met**" not in text


def test_an_aim_that_is_missed_is_called_so() -> None:
    slower = [run("nightside", 1, 9.8, 1.0), *PAIRED[1:3], run("nightside", 2, 19.7, 1.0)]
    later = [run("nightside", 1, 11.0, 401.0), *PAIRED[1:3], run("nightside", 2, 20.0, 101.0)]
    for runs in (slower, later):
        assert "| **not met** |" in page_of(document(*runs))


def test_what_more_engines_serve_stands_beside_what_a_part_of_them_does() -> None:
    cases = [
        {"name": name, "what": "users", "about": "An engine.", "beside": beside}
        for name, beside in (("alone", ""), ("both", "alone"))
    ]
    runs = [run("nightside", 1, 20.0, 1.0, case="alone"), run("nightside", 1, 25.0, 1.0, case="both")]
    assert "`nightside` serves × 1.25 (1.25–1.25) of what *alone* does." in page_of(document(*runs, cases=cases))
    assert "`nightside` serves – of what *alone* does." in page_of(document(runs[1], cases=cases))


def test_a_round_that_was_not_played_is_paired_with_nothing() -> None:
    text = page_of(document(*PAIRED[:3], faults=["5 of 8: agentic, round 2: nightside: it `ended`\nby itself"]))
    assert "| vllm-router | × 2.00 (2.00–2.00) |" in text
    assert "- 5 of 8: agentic, round 2: nightside: it 'ended' by itself" in text


def test_what_was_never_played_and_who_is_not_here_is_told() -> None:
    text = page_of(document(not_measured={"sglang-router": "not available: no wheel"}))
    assert "Not played." in text
    assert "- `sglang-router`: not available: no wheel" in text


def test_failures_are_counted_over_the_rounds() -> None:
    failed = [
        run(
            "vllm-router", number, 1.0, 1.0, total=PAIRED[1]["total"] | {"failed": 3, "failures": {"HTTP 503: busy": 3}}
        )
        for number in (1, 2)
    ]
    text = page_of(document(PAIRED[0], *failed))
    assert "| failed | 0 | 6 |" in text
    assert "- vllm-router: 6 × `HTTP 503: busy`" in text


@pytest.mark.parametrize(
    ("own", "all_of_it", "words"),
    [
        (0.2, 0.3, "no system waited for a core for long"),
        (0.2, 0.95, "something else had the machine meanwhile"),
        (0.7, 0.95, "Above 60% a run measures the machine too"),
    ],
)
def test_whose_the_machine_was_is_told(own: float, all_of_it: float, words: str) -> None:
    busy = run("nightside", 1, 1.0, 1.0, machine_cpu={"own_share": own, "mean_share": all_of_it, "peak_share": 1.0})
    text = page_of(document(busy))
    assert words in text
    assert "Requests left 4 ms (p99) after they were due" in text


def test_a_machine_that_tells_nothing_is_no_reason_to_fail() -> None:
    text = page_of(document(run("nightside", 1, 1.0, 1.0, machine_cpu=None, lag_ms=None)))
    assert "| CPU, its own | – |" in text
    assert "processes of a run used" not in text
