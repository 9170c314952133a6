"""Whole worlds with a controller: the replicas taken over, when, by which gateway, and the effect on clients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from controller.core.controller_core import ControllerCore
from controller.core.vocabulary import Condition
from gateway.core.vocabulary import GatewayId
from loadgen.figures import Figures
from loadgen.simulator.callers import FailedBy
from loadgen.simulator.results import figures_of
from loadgen.simulator.world import World
from tests.support.scenarios import controlled_scenario

SECOND = 1_000_000_000
EU, US0, US1, AP = (GatewayId(name) for name in ("eu/gw", "us/gw0", "us/gw1", "ap/gw"))


def killed(*names: str, at: str = "5s", lasts: str = "10s", kind: str = "gateway_crash") -> list[dict[str, Any]]:
    return [{"kind": kind, "target": name, "at": at, "lasts": lasts} for name in names]


def world_of(**changes: Any) -> World:
    scenario = controlled_scenario(**changes)
    return World(scenario, scenario.runs[0], every_invariant=True)


def played(**changes: Any) -> Figures:
    """Controller's part of the report of a world, checked to its end."""
    world = world_of(**changes)
    story = world.play()
    world.check_the_end()
    figures: Figures = figures_of(controlled_scenario(**changes), story)["control"]
    return figures


def until(world: World, seconds: float) -> None:
    world.play(lambda: world.now_ns < seconds * SECOND)


def serving(world: World) -> dict[GatewayId, set[str]]:
    assert world.control is not None
    return {name: set(map(str, replicas)) for name, replicas in world.control.serving().items()}


def core_of(world: World) -> ControllerCore:
    assert world.control is not None
    core = world.control.controllers["controller"].core
    assert core is not None, "it lives"
    return core


class TestFailover:
    def test_a_dead_gateways_replicas_are_with_the_nearest_and_come_home(self) -> None:
        world = world_of(faults=killed("eu/gw"))
        until(world, 12)
        there = serving(world)
        assert EU not in there
        assert {"eu/0", "eu/1"} <= there[US0] | there[US1]
        assert not {"eu/0", "eu/1"} & there[AP]

    def test_within_seconds_of_a_killed_process_even_if_all_but_one_are(self) -> None:
        figures = played(faults=killed("eu/gw", "us/gw0", "us/gw1"))
        assert len(figures["failovers"]) == 3
        for each in figures["failovers"]:
            assert each["reassigned_s"] <= 3
            assert each["renamed_s"] <= 5
            assert each["home_s"] > each["returned_s"]

    def test_a_silent_host_takes_longer_and_is_taken_over_all_the_same(self) -> None:
        dead, silent = (
            played(faults=killed("eu/gw", kind=kind))["failovers"][0] for kind in ("gateway_crash", "gateway_silent")
        )
        assert dead["reassigned_s"] < silent["reassigned_s"] < 10

    def test_with_a_sibling_nothing_fails_that_had_not_begun(self) -> None:
        figures = played(faults=killed("us/gw0"))
        failed: Counter[str] = Counter(figures["failed_by"])
        assert failed.total() == failed[FailedBy.IN_FLIGHT]

    def test_every_failure_is_somebodys(self) -> None:
        clients = [{"region": region, "workload": "chat", "clients": 8} for region in ("us", "eu", "ap")]
        figures = played(clients=clients, faults=killed("eu/gw") + killed("us/gw0", "us/gw1", at="18s", lasts="6s"))
        assert figures["failed_by"][FailedBy.UNCLASSIFIED] == 0
        assert figures["failed_by"][FailedBy.IN_FLIGHT] > 0
        assert sum(figures["tries"].values()) > figures["tries"]["1"]

    def test_a_home_that_accepts_nobody_is_adopted_by_nobody(self) -> None:
        closed = {
            "eu": {"jurisdiction": "EU", "replicas": 2, "accept": {}},
            "us": {"jurisdiction": "US", "replicas": 2},
        }
        clients = [{"region": "us", "workload": "chat", "clients": 1}]
        world = world_of(regions=closed, clients=clients, faults=killed("eu/gw"))
        until(world, 12)
        assert serving(world) == {GatewayId("us/gw"): {"us/0", "us/1"}}

    def test_what_every_gateway_leaves_out_is_served_by_none_and_comes_home(self) -> None:
        alone = {"region": "us", "refusing_share": 1.0}
        world = world_of(faults=killed("eu/gw"), controller=alone)
        until(world, 12)
        assert not {"eu/0", "eu/1"} & set().union(*serving(world).values())
        assert "left it out (its key is not here)" in core_of(world).orphans[EU][1]
        whole = world_of(faults=killed("eu/gw"), controller=alone)
        whole.play()
        whole.check_the_end()
        assert not core_of(whole).orphans


class TestTheControllerIsGone:
    def test_names_resolve_and_everybody_is_served(self) -> None:
        figures = played(faults=[{"kind": "controller_crash", "target": "controller", "at": "5s", "lasts": "20s"}])
        assert Counter(figures["failed_by"]).total() == 0

    def test_what_was_adopted_stays_so_over_its_restart(self) -> None:
        crash = {"kind": "controller_crash", "target": "controller", "at": "9s", "lasts": "1s"}
        world = world_of(faults=[*killed("eu/gw", lasts="20s"), crash])
        until(world, 16)
        there = serving(world)
        assert {"eu/0", "eu/1"} <= there[US0] | there[US1]

    def test_whoever_was_down_is_so_in_its_next_life_and_until_it_is_up(self) -> None:
        """A controller that began without state would put the dead gateway's address into DNS again."""
        crash = {"kind": "controller_crash", "target": "controller", "at": "9s", "lasts": "1s"}
        world = world_of(faults=[*killed("eu/gw", lasts="10s"), crash])
        until(world, 10.1)
        core = core_of(world)
        assert core.health[EU].condition is Condition.DOWN
        assert core.tree is not None
        assert EU not in {name for area in core.tree.areas for name in area.gateways}
        assert [name for name, health in core.health.items() if health.condition is Condition.DOWN] == [EU]
        world = world_of(faults=[*killed("eu/gw", lasts="10s"), crash, {**crash, "at": "30s"}])
        until(world, 31.1)
        assert core_of(world).health[EU].condition is not Condition.DOWN

    def test_a_gateway_that_dies_with_it_is_taken_over_soon_after_its_restart(self) -> None:
        both = [{"kind": "controller_crash", "target": "controller", "at": "5s", "lasts": "3s"}, *killed("eu/gw")]
        assert played(faults=both)["failovers"][0]["reassigned_s"] <= 3 + 3

    @pytest.mark.parametrize("kind", ["controller_crash", "store_lost"])
    def test_its_next_life_is_believed_also_with_nothing_left_of_the_last(self, kind: str) -> None:
        lost = {"kind": kind, "target": "controller", "at": "8s", "lasts": "1s"}
        figures = played(faults=[lost, *killed("eu/gw", at="18s", lasts="5s")])
        assert figures["failovers"][0]["reassigned_s"] <= 3

    def test_one_that_returns_with_an_old_snapshot_hears_from_its_peers_what_is_not_its_own_any_more(self) -> None:
        crash = {"kind": "controller_crash", "target": "controller", "at": "9s", "lasts": "15s"}
        world = world_of(faults=[*killed("eu/gw", kind="old_snapshot", lasts="6s"), crash])
        until(world, 16)
        assert serving(world)[EU] == set()
        assert world.control is not None
        assert world.control.attachments[EU].told == 1
        core = world.control.attachments[EU].gateway.core
        assert core is not None
        assert core.hooks.awaits, "what its replicas serve is not unknown, whoever has them"

    def test_cut_off_from_all_it_takes_nothing_from_anybody(self) -> None:
        cuts = [
            {"kind": "partition", "target": "controller", "other": region, "at": "5s", "lasts": "15s"}
            for region in ("us", "eu", "ap")
        ]
        world = world_of(faults=cuts)
        until(world, 19)
        assert {name: len(replicas) for name, replicas in serving(world).items()} == {US0: 2, US1: 2, EU: 2, AP: 2}


class TestTheStory:
    def test_the_controller_is_in_it(self) -> None:
        scenario = controlled_scenario(faults=killed("eu/gw"), duration="12s")
        lines: list[str] = []
        World(scenario, scenario.runs[0], on_line=lines.append).play()
        assert any("controller GatewayDisconnected" in line for line in lines)
        assert any(" eu/gw takes ControlVersion" in line for line in lines)
        assert not any("frozenset" in line for line in lines)
