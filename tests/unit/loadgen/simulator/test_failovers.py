"""Stages of a failover, each once and in seconds from the death."""

from __future__ import annotations

from controller.core.effects import Effect, KeepOwners, PublishRecords, TellCondition
from controller.core.events import ControllerTimePassed, StateRestored
from controller.core.vocabulary import Condition
from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName, ReplicaId
from loadgen.simulator.failovers import Failovers
from mesh.naming.tree import Area, RecordTree

US, EU, R = GatewayId("us/gw"), GatewayId("eu/gw"), ReplicaId("eu/0")
SECOND = 1_000_000_000


def tree(*gateways: GatewayId) -> RecordTree:
    return RecordTree(1, 5, (Area(RegionName("eu"), Jurisdiction("EU"), gateways, gateways),), gateways)


def test_each_stage_is_noted_once() -> None:
    failovers = Failovers({R: EU})
    failovers.on_controller_step(0, 0, StateRestored(1, ((R, EU),), ()), [])
    failovers.on_struck(10 * SECOND, EU)
    death: list[Effect] = [
        TellCondition(EU, Condition.DOWN, "gone"),
        KeepOwners(2, ((R, US),), ()),
        PublishRecords(tree(US)),
    ]
    failovers.on_controller_step(11 * SECOND, 0, ControllerTimePassed(), death)
    failovers.on_controller_step(12 * SECOND, 0, ControllerTimePassed(), death)
    failovers.on_controller_step(30 * SECOND, 0, ControllerTimePassed(), [KeepOwners(3, ((R, EU),), ())])
    figures = failovers.found[0].as_figures()
    assert figures["at_s"] == 10
    assert [figures[f"{stage}_s"] for stage in ("down", "reassigned", "renamed", "home")] == [1, 1, 1, 20]
    assert figures["adopted_s"] is figures["returned_s"] is None


def test_a_short_death_that_nobody_acted_on_stays_open() -> None:
    failovers = Failovers({R: EU})
    failovers.on_struck(10 * SECOND, EU)
    failovers.on_controller_step(11 * SECOND, 0, ControllerTimePassed(), [KeepOwners(2, ((R, EU),), ())])
    assert failovers.found[0].as_figures()["reassigned_s"] is None
    assert failovers.found[0].as_figures()["home_s"] is None
