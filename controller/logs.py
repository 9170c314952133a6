"""Log events for the core's effects, and the latest of them for the page. The observers decide nothing, and report
nothing twice."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, assert_never

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from controller.core.effects import (
    Effect,
    KeepOwners,
    KeepPolicy,
    PublishRecords,
    TellCondition,
    TellFrozen,
    TellOrphans,
)
from controller.core.vocabulary import Condition
from controller.driver import ControllerStep, ControllerSubscriptions
from controller.log_events import EVENTS
from mesh.clock import Clock

RECENT_MAX = 100

_BY_NAME = {each.name: each for each in EVENTS}


class EffectLog(Struct, frozen=True):
    """One log event about an effect, with its fields."""

    event: str
    """Name of a registered event."""
    details: dict[str, object]

    @property
    def level(self) -> str:
        return _BY_NAME[self.event].levels[0]

    @property
    def meaning(self) -> str:
        return _BY_NAME[self.event].meaning


def _of_frozen(effect: TellFrozen) -> EffectLog:
    return (
        EffectLog("failover_frozen", {"reason": effect.reason}) if effect.reason else EffectLog("failover_unfrozen", {})
    )


def _of_orphans(effect: TellOrphans) -> EffectLog:
    if not effect.replicas:
        return EffectLog("orphaned_replicas_assigned", {"home_gateway": effect.gateway_id})
    details: dict[str, object] = {"home_gateway": effect.gateway_id, "replicas": effect.replicas, "reason": effect.why}
    return EffectLog("no_eligible_gateway_for_replicas", details)


def _of_owners(effect: KeepOwners) -> EffectLog:
    gained = Counter(owner for _, owner in effect.owners)
    return EffectLog(
        "replicas_reassigned", {"assigned": dict(sorted(gained.items())), "unassigned": len(effect.orphans)}
    )


def _of_records(effect: PublishRecords) -> EffectLog:
    records = {area.region: list(area.gateways) for area in effect.tree.areas}
    return EffectLog("dns_records_updated", {"records": records})


def _of_policy(effect: KeepPolicy) -> EffectLog:
    policy = effect.policy
    details: dict[str, object] = {"region": policy.place.region, "digest": policy.digest}
    return EffectLog("region_policy_recorded", {**details, "closed": bool(policy.closed_reason)})


def _of_condition(effect: TellCondition) -> EffectLog:
    details: dict[str, object] = {"gateway": effect.gateway_id, "reason": effect.why}
    match effect.condition:
        case Condition.UP:
            return EffectLog("gateway_up", details)
        case Condition.DOWN:
            return EffectLog("gateway_down", details)
        case Condition.RETURNING:
            return EffectLog("gateway_returning", details)
        case Condition.ALONE:
            return EffectLog("gateway_alone", details)
        case Condition.UNKNOWN:
            raise AssertionError("only known conditions are told")
        case _:
            assert_never(effect.condition)


TELLINGS: dict[type, Callable[[Any], EffectLog]] = {
    TellCondition: _of_condition,
    TellFrozen: _of_frozen,
    TellOrphans: _of_orphans,
    KeepOwners: _of_owners,
    PublishRecords: _of_records,
    KeepPolicy: _of_policy,
}
"""Wording of each type of effect that is logged here. Snapshots are logged where they are sent, and recoveries where
they begin."""


class CoreLog:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self.subscriptions: ControllerSubscriptions = dict.fromkeys(TELLINGS, self._take)

    def _take(self, _step: ControllerStep, effect: Effect) -> None:
        told = TELLINGS[type(effect)](effect)
        self._log.log(logging.getLevelNamesMapping()[told.level.upper()], told.event, **told.details)


class Recent:
    """Latest events with their times, for the page. Another observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: deque[tuple[str, EffectLog]] = deque(maxlen=RECENT_MAX)
        self.subscriptions: ControllerSubscriptions = dict.fromkeys(TELLINGS, self._take)

    def _take(self, _step: ControllerStep, effect: Effect) -> None:
        self._last.append((self._clock.wall_time(), TELLINGS[type(effect)](effect)))

    def newest(self) -> list[tuple[str, EffectLog]]:
        """Return the events, the newest first."""
        return list(reversed(self._last))
