"""Origins of a load in the results: unreadable, cut and shifted parts are never left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.figures import Figures
from loadgen.pages.runs import page_of
from loadgen.simulator.origins import origins_of
from loadgen.simulator.results import document_of, figures_of
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import World

ROW = {"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
CURVE = [[0, 1], [12, 3]]


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    (tmp_path / "recorded.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n<b>\n")
    (tmp_path / "questions").write_text("Why?\n{}\n")
    clients: list[dict[str, Any]] = [
        {"workload": "recorded"},
        {"workload": "recorded", "shift": "90m"},
        {"workload": "recorded", "clients": 2},
        {"workload": "chat", "arrivals": {"rate": 2}},
        {"workload": "chat", "arrivals": {"diurnal": {"peak": 2, "trough": 1, "day": "9s", "shift_hours": -5}}},
        {"workload": "chat", "arrivals": {"recorded": {"file": CURVE, "day": "9s", "mean": 1, "shift_hours": 9}}},
    ]
    document = {
        "name": "recorded",
        "duration": "5s",
        "preset": "tiny",
        "round_trips": [],
        "regions": {"us": {"jurisdiction": "US", "replicas": 2}},
        "workloads": {
            "recorded": {"trace": {"file": "recorded.jsonl", "speed": 2, "input_tokens_max": 100}},
            "chat": {"conversations": {}, "questions": "questions"},
            "unused": {"trace": {"file": "recorded.jsonl"}},
        },
        "clients": [{"region": "us"} | each for each in clients],
    }
    return parse_scenario(document, tmp_path / "recorded.yaml")


def test_arrivals_are_named_and_what_was_shifted_is_called_so(scenario: Scenario) -> None:
    clients = origins_of(scenario)["clients"]
    assert [(each["arrive"], each["shifted_hours"]) for each in clients] == [
        ("as recorded", 0),
        ("as recorded", 1.5),
        ("2 at a time", 0),
        ("2 a second", 0),
        ("curve, shifted by -5 h", -5),
        ("recorded rate, shifted by +9 h", 9),
    ]


def test_files_are_named_with_what_of_them_is_missing(scenario: Scenario) -> None:
    origins = origins_of(scenario)
    (trace,) = origins["traces"]
    assert (trace["file"], trace["format"], trace["rows"], trace["unreadable"]) == ("recorded.jsonl", "mooncake", 3, 1)
    assert (trace["inputs_cut"], trace["input_tokens_cut"]) == (2, 1000)
    (questions,) = origins["questions"]
    assert (questions["questions"], questions["unreadable"]) == (1, 1)


def test_results_and_report_show_it(scenario: Scenario) -> None:
    story = World(scenario, scenario.runs[0]).play()
    document: Figures = json.loads(json.dumps(document_of(scenario, [figures_of(scenario, story)])))
    page = page_of(document)
    assert document["origins"]["traces"][0]["unreadable"] == 1
    assert "2 of 3 requests of recorded.jsonl (mooncake), 2 times as fast" in page
    assert "2 inputs cut short" in page
    assert "<b>1 lines unreadable</b>, the first: line 3: " in page
    assert page.count("<b>shifted</b>") == 3
