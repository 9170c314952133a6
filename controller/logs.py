"""Log events for the core's effects, and the latest of them for the page. The observers decide nothing, and report
nothing twice."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from structlog.typing import FilteringBoundLogger

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
from controller.core.events import Event
from controller.core.vocabulary import Condition
from controller.log_events import EVENTS
from gateway.ground.clock import Clock

RECENT_MAX = 100

_BY_NAME = {each.name: each for each in EVENTS}


@dataclass(frozen=True, slots=True)
class Telling:
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


def tellings_of(effects: list[Effect]) -> Iterator[Telling]:
    details: dict[str, object]
    for effect in effects:
        match effect:
            case TellCondition():
                yield _of_condition(effect)
            case TellFrozen() if effect.reason:
                yield Telling("failover_frozen", {"reason": effect.reason})
            case TellFrozen():
                yield Telling("failover_unfrozen", {})
            case TellOrphans() if effect.replicas:
                details = {"home_gateway": effect.gateway_id, "replicas": effect.replicas, "reason": effect.why}
                yield Telling("no_eligible_gateway_for_replicas", details)
            case TellOrphans():
                yield Telling("orphaned_replicas_assigned", {"home_gateway": effect.gateway_id})
            case KeepOwners():
                gained = Counter(owner for _, owner in effect.owners)
                details = {"assigned": dict(sorted(gained.items())), "unassigned": len(effect.orphans)}
                yield Telling("replicas_reassigned", details)
            case PublishRecords():
                records = {area.region: list(area.gateways) for area in effect.tree.areas}
                yield Telling("dns_records_updated", {"records": records})
            case KeepPolicy():
                policy = effect.policy
                details = {"region": policy.place.region, "digest": policy.digest, "closed": bool(policy.closed_reason)}
                yield Telling("region_policy_recorded", details)
            case Assign() | StartRecovery():
                pass  # logged where a snapshot is sent, and where a recovery begins


def _of_condition(effect: TellCondition) -> Telling:
    details: dict[str, object] = {"gateway": effect.gateway_id, "reason": effect.why}
    match effect.condition:
        case Condition.UP:
            return Telling("gateway_up", details)
        case Condition.DOWN:
            return Telling("gateway_down", details)
        case Condition.RETURNING:
            return Telling("gateway_returning", details)
        case Condition.UNKNOWN:
            raise AssertionError("only known conditions are told")
        case _:
            assert_never(effect.condition)


class CoreLog:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:  # noqa: ARG002 - as observers have it
        for each in tellings_of(effects):
            self._log.log(logging.getLevelNamesMapping()[each.level.upper()], each.event, **each.details)


class Recent:
    """Latest events with their times, for the page. Another observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: deque[tuple[str, Telling]] = deque(maxlen=RECENT_MAX)

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:  # noqa: ARG002 - as observers have it
        for each in tellings_of(effects):
            self._last.append((self._clock.wall_time(), each))

    def newest(self) -> list[tuple[str, Telling]]:
        """Return the events, the newest first."""
        return list(reversed(self._last))
