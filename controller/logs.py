"""A line in the log for what the core tells people. An observer: it decides nothing, and says nothing twice."""

from __future__ import annotations

from collections import Counter

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


class CoreLog:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:  # noqa: ARG002 - as observers have it
        for effect in effects:
            self._tell(effect)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case TellCondition():
                log = self._log.error if effect.condition is Condition.DOWN else self._log.info
                log(f"gateway {effect.condition}", gateway=effect.gateway_id, reason=effect.why)
            case TellFrozen() if effect.reason:
                self._log.error("FROZEN: nothing is taken from anybody", reason=effect.reason)
            case TellFrozen():
                self._log.info("no longer frozen")
            case TellOrphans() if effect.replicas:
                count, why = effect.replicas, effect.why
                self._log.error("NOBODY MAY HAVE THESE REPLICAS", home=effect.gateway_id, replicas=count, reason=why)
            case TellOrphans():
                self._log.info("all replicas of this gateway have an owner", home=effect.gateway_id)
            case KeepOwners():
                gained = Counter(owner for _, owner in effect.owners)
                self._log.info("replicas change hands", to=dict(sorted(gained.items())), to_nobody=len(effect.orphans))
            case PublishRecords():
                areas = {area.region: list(area.gateways) for area in effect.tree.areas}
                self._log.info("the name says something else", areas=areas)
            case KeepPolicy():
                self._log.info("a region lives by", region=effect.policy.place.region, digest=effect.policy.digest)
            case Assign() | StartRecovery():
                pass  # told where it goes out, and where it begins
