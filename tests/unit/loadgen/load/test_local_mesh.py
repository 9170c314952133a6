"""Files written for a mesh on this machine allow its regions what the scenario allows."""

from __future__ import annotations

from pathlib import Path

from gateway.core.vocabulary import RegionName
from gateway.policy.file import load_policy
from loadgen.load.local_mesh import as_demo
from loadgen.shipped import scenarios
from loadgen.simulator.scenario import load_scenario


def test_every_region_may_send_to_and_take_from_every_other(tmp_path: Path) -> None:
    scenario = load_scenario(scenarios()["few_large"])
    demo = as_demo(scenario, tmp_path)
    for region in demo.regions:
        policy = load_policy(region.policy_file)
        for other in demo.regions:
            assert policy.accept.allows(other.place), f"{region.name} takes nothing of {other.name}"
            assert policy.process.allows(other.place), f"{region.name} sends nothing to {other.name}"


def test_engines_have_the_slots_of_their_region(tmp_path: Path) -> None:
    demo = as_demo(load_scenario(scenarios()["few_large"]), tmp_path)
    slots = {region.name: region.slots for region in demo.regions}
    assert slots == {RegionName("us-east-1"): 4, RegionName("eu-west-1"): 16}
