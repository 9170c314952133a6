"""Worlds with a controller, drawn from seeds: the same each time, and of many kinds."""

from __future__ import annotations

from pathlib import Path

import yaml

from loadgen.simulator.chaos import ChaosKind, chaos_document, chaos_scenario
from loadgen.simulator.controller_chaos import controller_document
from loadgen.simulator.faults import FaultKind
from loadgen.simulator.scenario import load_scenario

SEEDS = range(80)


def test_a_seed_draws_the_same_world_and_it_can_be_written_down(tmp_path: Path) -> None:
    assert controller_document(7) == controller_document(7) != controller_document(8)
    for seed in range(10):
        path = tmp_path / f"chaos-{seed}.yaml"
        path.write_text(yaml.safe_dump(chaos_document(seed, ChaosKind.CONTROLLER)))
        assert load_scenario(path) == chaos_scenario(seed, ChaosKind.CONTROLLER)


def test_worlds_are_of_many_kinds() -> None:
    worlds = [chaos_scenario(seed, ChaosKind.CONTROLLER) for seed in SEEDS]
    kinds = {fault.kind for world in worlds for fault in world.faults}
    of_one = {kind for kind in FaultKind if kind.needs_controller and not kind.needs_pair}
    assert of_one | {FaultKind.GATEWAY_SILENT} <= kinds
    pairs = [chaos_scenario(seed, ChaosKind.PAIR) for seed in SEEDS]
    of_pairs = {fault.kind for world in pairs for fault in world.faults}
    assert {kind for kind in FaultKind if kind.needs_controller} - {FaultKind.STORE_LOST} <= of_pairs
    assert {world.controller is not None and world.controller.standby is not None for world in pairs} == {True}
    assert {len(world.regions) for world in worlds} == {2, 3, 4, 5}
    all_but_one = [world for world in worlds if _dead_at_once(world.faults) == len(world.fleet()) - 1]
    assert len(all_but_one) > 5


def _dead_at_once(faults: tuple[object, ...]) -> int:
    begins = [(getattr(each, "at", 0), each) for each in faults]
    return max((sum(at == other for other, _ in begins) for at, _ in begins), default=0)
