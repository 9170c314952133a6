"""Live cases can be started, with recorded agents where there are some, and real engines on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.studies.placement.live.cases import cases
from loadgen.traces.replay import GroupReplay
from loadgen.workload import MultiTurnWorkload
from mesh.faults import ConfigError


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    file = tmp_path / "claude_code_sessions/requests.jsonl"
    file.parent.mkdir()
    lines = [
        {"s": f"s{session}", "i": step, "t": 60 * step, "in": 64_000, "out": 500, "blk": [[0, 999]], "think": 30}
        for session in range(30)
        for step in range(2)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_without_a_trace_agents_are_made_up_and_all_can_be_brought_to_life() -> None:
    found = cases(None, None, {})
    assert [case.name for case in found[:3]] == ["agentic", "agentic, half as many again", "mixed"]
    for case in found:
        scenario = case.scenario(7)
        assert scenario.seed == 7
        assert scenario.balancer_region in scenario.regions
    assert [sum(each.replicas for each in case.scenario(7).regions.values()) for case in found] == [
        6,
        6,
        6,
        1,
        2,
        2,
        5,
        4,
    ]
    assert isinstance(found[0].scenario(1).workload_of(0), MultiTurnWorkload)


def test_recorded_agents_take_their_place_and_are_made_to_measure(traces: Path) -> None:
    agentic, more, *_ = cases(traces, None, {})
    workload = agentic.scenario(1).workload_of(0)
    assert isinstance(workload, GroupReplay)
    steps = next(workload.programs("somebody")).steps
    passages = [step.passage for step in steps if step.passage is not None]
    assert len(passages) == len(steps) > 0
    assert all(500 < passage.tokens < 2_000 for passage in passages), "a fiftieth, by whole tokens of each block"
    assert all(step.think_s <= 2 for step in steps)
    assert "recorded" in agentic.what
    assert [each.clients for each in agentic.scenario(1).clients] == [20] * 3
    assert [each.clients for each in more.scenario(1).clients] == [30] * 3


def test_real_engines_are_a_case_of_their_own_with_one_each_in_two_regions() -> None:
    real = cases(None, Path("python"), {})[-1]
    scenario = real.scenario(1)
    assert real.llamacpp == Path("python")
    assert [region.replicas for region in scenario.regions.values()] == [1, 1]


def test_a_large_engine_with_others_beside_it_is_compared_with_the_same_one_alone() -> None:
    alone, *others = cases(None, None, {})[3:]
    assert [each.beside for each in others] == [alone.name] * 4
    slots = [[each.slots for each in case.scenario(1).regions.values()] for case in (alone, *others)]
    assert slots == [[16], [4, 16], [4, 16], [4, 4], [4, 4, 4, 16]]


def test_changes_are_made_to_all_and_what_cannot_be_brought_to_life_is_refused() -> None:
    assert [case.scenario(1).duration for case in cases(None, None, {"duration": "13s"})] == [13_000_000_000] * 8
    with pytest.raises(ConfigError, match="should have one gateway"):
        cases(None, None, {"regions.us-east-1.gateways": 2})[0].scenario(1)
