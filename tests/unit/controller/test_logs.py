from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from controller.core.effects import (
    Assign,
    Effect,
    KeepOwners,
    KeepPolicy,
    PublishRecords,
    StartRecovery,
    TellCondition,
    TellFrozen,
    TellOrphans,
)
from controller.core.events import ControllerTimePassed
from controller.core.vocabulary import Condition
from controller.log_events import CONTROLLER
from controller.logs import TELLINGS, CoreLog, EffectLog, Recent
from gateway.core.kernel.residency import closed_policy
from gateway.core.vocabulary import GatewayId, ReplicaId
from mesh.naming.tree import Area, RecordTree
from tests.support.clock import StillClock
from tests.support.core import US, policy
from tests.support.log_calls import registered_fields
from tests.support.steps import tell_step

EU_1 = GatewayId("eu-1")
EFFECTS: list[Effect] = [TellFrozen("drill"), TellOrphans(EU_1, 2, "no region is allowed")]


def telling_of(effect: Effect) -> EffectLog:
    return TELLINGS[type(effect)](effect)


@pytest.mark.parametrize("condition", sorted({*Condition} - {Condition.UNKNOWN}))
def test_each_condition_of_a_gateway_has_its_event(condition: Condition) -> None:
    told = telling_of(TellCondition(EU_1, condition, "it is silent"))
    assert told.event == f"gateway_{condition}"
    assert told.level == ("error" if condition is Condition.DOWN else "info")
    assert told.details == {"gateway": "eu-1", "reason": "it is silent"}


def test_a_reassignment_counts_replicas_by_their_new_gateway() -> None:
    owners = ((ReplicaId("a"), EU_1), (ReplicaId("b"), EU_1))
    told = telling_of(KeepOwners(3, owners, (ReplicaId("c"),)))
    assert (told.event, told.details) == ("replicas_reassigned", {"assigned": {"eu-1": 2}, "unassigned": 1})


TREE = RecordTree(1, 60, (Area(US.region, US.jurisdiction, (GatewayId("us-1"),), ("192.0.2.1",)),), ())
TOLD: list[Effect] = [
    *(TellCondition(EU_1, condition, "it is silent") for condition in Condition if condition is not Condition.UNKNOWN),
    *(TellFrozen(reason) for reason in ("drill", "")),
    *(TellOrphans(EU_1, replicas, "no region is allowed") for replicas in (2, 0)),
    KeepOwners(3, ((ReplicaId("a"), EU_1),), ()),
    PublishRecords(TREE),
    KeepPolicy(policy(US)),
]
UNTOLD: list[Effect] = [Assign(EU_1, 1, ()), StartRecovery(EU_1, "it is silent")]


@pytest.mark.parametrize("effect", TOLD, ids=lambda each: type(each).__name__)
def test_an_effect_is_told_with_every_registered_field_and_no_other(effect: Effect) -> None:
    told = telling_of(effect)
    assert {*told.details} == registered_fields(told.event, CONTROLLER)


def test_what_is_logged_elsewhere_is_not_logged_twice() -> None:
    assert {type(each) for each in TOLD} == TELLINGS.keys()
    with capture_logs() as lines:
        tell_step(CoreLog(structlog.get_logger()), 0, ControllerTimePassed(), UNTOLD)
    assert lines == []


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_policy_of_a_region_is_recorded_as_open_or_closed(*, is_closed: bool) -> None:
    recorded = closed_policy(US, "no file") if is_closed else policy(US)
    told = telling_of(KeepPolicy(recorded))
    assert told.event == "region_policy_recorded"
    assert told.details == {"region": US.region, "digest": recorded.digest, "closed": is_closed}


def test_effects_are_logged_at_the_level_that_is_registered() -> None:
    with capture_logs() as lines:
        log = CoreLog(structlog.get_logger())
        tell_step(log, 0, ControllerTimePassed(), [*EFFECTS, TellFrozen(""), TellOrphans(EU_1, 0, "")])
    assert lines == [
        {"event": "failover_frozen", "log_level": "error", "reason": "drill"},
        {
            "event": "no_eligible_gateway_for_replicas",
            "log_level": "error",
            "home_gateway": "eu-1",
            "replicas": 2,
            "reason": "no region is allowed",
        },
        {"event": "failover_unfrozen", "log_level": "info"},
        {"event": "orphaned_replicas_assigned", "log_level": "info", "home_gateway": "eu-1"},
    ]


def test_the_page_has_a_sentence_for_each_the_newest_first() -> None:
    recent = Recent(StillClock())
    tell_step(recent, 0, ControllerTimePassed(), EFFECTS)
    assert [(each.event, each.meaning) for _, each in recent.newest()] == [
        ("no_eligible_gateway_for_replicas", "Replicas have no eligible gateway, and serve no requests."),
        ("failover_frozen", "Automatic failover and reassignment are suspended."),
    ]
