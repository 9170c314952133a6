"""Replicas that come and go in small worlds: ordered ones arrive late, and removed ones lose no request."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.engines import SimReplica
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import parse_scenario
from loadgen.simulator.world import Story, World
from loadgen.vocabulary import RequestEnd
from mesh.faults import ConfigError
from tests.support.nightly import first_of
from tests.support.scenarios import small_document

SECOND = 1_000_000_000
SCALING = {
    "concurrency": 2,
    "start_delay": "3s",
    "interval": "1s",
    "window": "2s",
    "up_after": "1s",
    "down_after": "4s",
}
REGIONS = {"us": {"jurisdiction": "US", "replicas": 3}, "eu": {"jurisdiction": "EU", "replicas": 3}}
WAVE = [["0s", 0], ["1s", 8], ["8s", 8], ["9s", 0], ["40s", 0]]
"""Users a second, in America alone: a curve of times and rates."""
ONCE = {"turns": {"median": 1, "sigma": 0, "minimum": 1, "maximum": 1}}
"""Conversations of a single turn."""


def document(mode: str, **changes: Any) -> dict[str, Any]:
    own = {
        "duration": "40s",
        "slots": 2,
        "regions": REGIONS,
        "workloads": {"chat": {"conversations": ONCE}},
        "clients": [{"region": "us", "workload": "chat", "arrivals": {"curve": WAVE}}],
        "scaling": SCALING | {"down_every": "1s"},
        "runs": [{"name": "it", "scaling": mode}],
    }
    return small_document(**own | changes)


def play(mode: str, engines: list[SimReplica] | None = None, **changes: Any) -> tuple[Story, list[str]]:
    """The story and the lines about scaling, of a world checked to its end. `engines`: gets those of the world."""
    scenario = parse_scenario(document(mode, **changes), Path("scaling.yaml"))
    lines: list[str] = []
    world = World(scenario, scenario.runs[0], every_invariant=True, on_line=lines.append)
    story = world.play()
    world.check_the_end()
    if engines is not None:
        engines += world._engines.values()
    return story, [line for line in lines if line.split()[1] == "scaling"]


@cache
def played(mode: str) -> tuple[Story, list[str]]:
    """Result of `play` for a world without changes, which several tests look at."""
    return play(mode)


def most(lines: list[str], region: str) -> int:
    return max(int(line.split()[3]) for line in lines if line.split()[2] == region)


def test_a_region_that_is_asked_for_more_gets_more_and_gives_it_back_and_nobody_is_lost() -> None:
    story, lines = played("region")
    assert most(lines, "us") > 1
    assert most(lines, "eu") == 1
    assert story.scaling is not None
    us = story.scaling["regions"]["us"]
    assert us["starts"] == us["stops"] > 0
    assert us["wanted"][-1][1] == 1
    assert {each.end for each in story.records} == {RequestEnd.COMPLETED}


def test_what_is_ordered_is_paid_for_at_once_and_serves_later() -> None:
    story, lines = played("region")
    first_ns = next(int(line.split()[0]) for line in lines if line.split()[2] == "us" and int(line.split()[3]) > 1)
    served = [sample for sample in story.samples["us"] if sum(load > 0 for load in sample.outstanding) > 1]  # type: ignore[index]
    assert served[0].at_ns >= first_ns + 3 * SECOND
    assert story.scaling is not None
    assert story.scaling["replica_hours"] > 2 * 40 / 3600


def test_together_they_start_none_for_which_a_neighbour_idles() -> None:
    apart, _ = play("region", scaling=SCALING | {"begin": 2})
    together, _ = play("mesh", scaling=SCALING | {"begin": 2})
    assert apart.scaling is not None
    assert together.scaling is not None
    assert together.scaling["replica_hours"] < apart.scaling["replica_hours"]
    assert together.scaling["actions"] <= apart.scaling["actions"]
    assert {each.end for each in together.records} == {RequestEnd.COMPLETED}


BESIDE = {
    "disaggregated": ({"prefill_workers": 1, "decode_workers": 2, "batch": 2}, "us/prefill"),
    "pools": ({"short": {"replicas": 1, "context_tokens_max": 2048, "threshold_tokens": 2048}}, "us/short"),
    "adopted": ([{"region": "eu", "replicas": 1}], "us/3"),
}
"""Keys of a region beside the replicas that are scaled, and how the names of their replicas begin."""


@pytest.mark.parametrize(
    "case",
    first_of(
        ["disaggregated region", "pools mesh", "adopted region", "disaggregated mesh", "pools region", "adopted mesh"],
        3,
    ),
)
def test_pools_and_adopted_replicas_stay_beside_what_scales(case: str) -> None:
    key, mode = case.split()
    value, named = BESIDE[key]
    engines: list[SimReplica] = []
    story, lines = play(mode, engines, regions={"us": REGIONS["us"] | {key: value}, "eu": REGIONS["eu"]})
    assert {each.end for each in story.records} == {RequestEnd.COMPLETED}
    assert most(lines, "us") >= 2
    assert story.scaling is not None
    assert story.scaling["regions"]["us"]["starts"] >= 1
    beside = [each for each in engines if each.replica_id.startswith(named)]
    assert beside
    assert all(each.is_up for each in beside)
    assert any(each.changed_ns > 0 for each in beside)
    assert sum(each.is_up for each in engines if each.replica_id in ("us/0", "us/1", "us/2")) == 1


def test_one_seed_tells_one_story() -> None:
    assert play("mesh")[0].digest == played("mesh")[0].digest


def test_a_run_that_does_not_scale_is_as_it_was_without_a_word_of_it() -> None:
    told = document("none")
    untold = {key: value for key, value in told.items() if key != "scaling"} | {"runs": [{"name": "it"}]}
    stories = [
        World(scenario, scenario.runs[0]).play()
        for scenario in (parse_scenario(each, Path("x.yaml")) for each in (told, untold))
    ]
    assert stories[0].digest == stories[1].digest
    assert stories[0].scaling is None


def test_figures_hold_what_it_came_to() -> None:
    figures = figures_of(parse_scenario(document("mesh"), Path("scaling.yaml")), played("mesh")[0])
    assert figures["scaling"]["mode"] == "mesh"
    assert set(figures["scaling"]["regions"]) == {"us", "eu"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"scaling": None}, "there is no `scaling` that says how"),
        ({"scaling": SCALING | {"begin": 4}}, "replicas: is below scaling.begin"),
        ({"regions": {"us": REGIONS["us"] | {"gateways": 2}, "eu": REGIONS["eu"]}}, "what scales is one gateway's"),
        ({"runs": [{"name": "it", "scaling": "mesh", "system": "global_least_load"}]}, "no region to scale"),
    ],
)
def test_what_cannot_be_scaled_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_scenario(document("mesh", **changes), Path("scaling.yaml"))
