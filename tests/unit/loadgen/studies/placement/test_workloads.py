"""Every workload can be read as a scenario, at any load."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.simulator.scenario import Scenario
from loadgen.studies.experiments import ScenarioCell
from loadgen.studies.placement.workloads import (
    PlacementWorkload,
    as_recorded,
    at_rate,
    few_large,
    find_traces,
    with_clients,
    workloads,
)
from tests.support.traces import published

GENERATED = workloads(find_traces(None))


def scenario(workload: PlacementWorkload) -> Scenario:
    return ScenarioCell("test", workload.point, {"name": "run"}, 1).scenario()


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return published(tmp_path)


def test_without_traces_there_is_what_is_generated() -> None:
    assert "mooncake" not in GENERATED
    assert {"arena", "tot-8", "skewed", "one-prompt", "bursts", "reasoning"} <= set(GENERATED)


def test_with_traces_there_are_the_twelve_and_the_three_of_the_older_page(traces: Path) -> None:
    known = workloads(find_traces(traces))
    assert len(known) == 12 + 3 + 1 + 2
    assert known["agentic-long"].point.name == "agentic sessions twice as long, 2/2/2"
    assert known["mooncake"].preset == scenario(known["mooncake"]).preset


@pytest.mark.parametrize("name", GENERATED)
def test_every_workload_is_a_scenario_with_the_engines_that_it_says(name: str) -> None:
    assert scenario(GENERATED[name]).preset == GENERATED[name].preset


@pytest.mark.parametrize("slots", [64, 256])
def test_few_large_replicas_have_nearly_all_their_users_in_one_region(slots: int) -> None:
    large = scenario(few_large(GENERATED["conversations"], slots, 2 * slots))
    assert [(each.replicas, each.slots) for each in large.regions.values()] == [(1, slots)] * 3
    assert [each.clients for each in large.clients] == [30 * slots // 16, slots // 16, slots // 16]


@pytest.mark.parametrize("name", [name for name in GENERATED if not name.endswith("-large")])
def test_it_can_be_asked_for_by_more_users_or_at_a_rate(name: str) -> None:
    assert {section.clients for section in scenario(with_clients(GENERATED[name], 30)).clients} == {30}
    open_loop = scenario(at_rate(GENERATED[name], 2.5))
    assert [section.arrivals is not None and section.arrivals.rate for section in open_loop.clients] == [2.5] * 3
    assert open_loop.clients[0].workload == scenario(GENERATED[name]).clients[0].workload


def test_what_was_recorded_can_come_as_it_came_and_faster(traces: Path) -> None:
    faster = scenario(as_recorded(workloads(find_traces(traces))["mooncake"], 3.0))
    assert all(section.is_recorded for section in faster.clients)
    trace = faster.workloads["chat"].trace
    assert trace is not None
    assert trace.speed == 3.0


def test_loads_are_told_apart_by_name() -> None:
    arena = GENERATED["arena"]
    names = {each.point.name for each in (arena, with_clients(arena, 30), with_clients(arena, 31), at_rate(arena, 1.0))}
    assert len(names) == 4
