from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from controller.core.effects import Effect, KeepOwners, TellCondition, TellFrozen, TellOrphans
from controller.core.events import TimePassed
from controller.core.vocabulary import Condition
from controller.logs import CoreLog, Recent, tellings_of
from gateway.core.vocabulary import GatewayId, ReplicaId
from tests.support.clock import StillClock

EU_1 = GatewayId("eu-1")
EFFECTS: list[Effect] = [TellFrozen("drill"), TellOrphans(EU_1, 2, "no region is allowed")]


@pytest.mark.parametrize("condition", sorted({*Condition} - {Condition.UNKNOWN}))
def test_each_condition_of_a_gateway_has_its_event(condition: Condition) -> None:
    (told,) = tellings_of([TellCondition(EU_1, condition, "it is silent")])
    assert told.event == f"gateway_{condition}"
    assert told.level == ("error" if condition is Condition.DOWN else "info")
    assert told.details == {"gateway": "eu-1", "reason": "it is silent"}


def test_a_reassignment_counts_replicas_by_their_new_gateway() -> None:
    owners = ((ReplicaId("a"), EU_1), (ReplicaId("b"), EU_1))
    (told,) = tellings_of([KeepOwners(3, owners, (ReplicaId("c"),))])
    assert (told.event, told.details) == ("replicas_reassigned", {"assigned": {"eu-1": 2}, "unassigned": 1})


def test_effects_are_logged_at_the_level_that_is_registered() -> None:
    with capture_logs() as lines:
        CoreLog(structlog.get_logger()).on_step(0, TimePassed(), [*EFFECTS, TellFrozen(""), TellOrphans(EU_1, 0, "")])
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
    recent.on_step(0, TimePassed(), EFFECTS)
    assert [(each.event, each.meaning) for _, each in recent.newest()] == [
        ("no_eligible_gateway_for_replicas", "Replicas have no eligible gateway, and serve no requests."),
        ("failover_frozen", "Automatic failover and reassignment are suspended."),
    ]
