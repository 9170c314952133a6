"""Lines about the core's effects: for the log, and the last of them for the page. The observers decide nothing, and
report nothing twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

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
from gateway.ground.clock import Clock

RECENT_MAX = 100


@dataclass(frozen=True, slots=True)
class Telling:
    """One line about an effect."""

    level: str
    """`error` or `info`."""
    words: str
    details: dict[str, object]


def tellings_of(effects: list[Effect]) -> Iterator[Telling]:
    for effect in effects:
        match effect:
            case TellCondition():
                level = "error" if effect.condition is Condition.DOWN else "info"
                details: dict[str, object] = {"gateway": effect.gateway_id, "reason": effect.why}
                yield Telling(level, f"gateway {effect.condition}", details)
            case TellFrozen() if effect.reason:
                yield Telling("error", "FROZEN: nothing is taken from anybody", {"reason": effect.reason})
            case TellFrozen():
                yield Telling("info", "no longer frozen", {})
            case TellOrphans() if effect.replicas:
                details = {"home": effect.gateway_id, "replicas": effect.replicas, "reason": effect.why}
                yield Telling("error", "NOBODY MAY HAVE THESE REPLICAS", details)
            case TellOrphans():
                yield Telling("info", "all replicas of this gateway have an owner", {"home": effect.gateway_id})
            case KeepOwners():
                gained = Counter(owner for _, owner in effect.owners)
                details = {"to": dict(sorted(gained.items())), "to_nobody": len(effect.orphans)}
                yield Telling("info", "replicas change hands", details)
            case PublishRecords():
                areas = {area.region: list(area.gateways) for area in effect.tree.areas}
                yield Telling("info", "the name says something else", {"areas": areas})
            case KeepPolicy():
                details = {"region": effect.policy.place.region, "digest": effect.policy.digest}
                yield Telling("info", "a region lives by", details)
            case Assign() | StartRecovery():
                pass  # logged where a snapshot is sent, and where a recovery begins


class CoreLog:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:  # noqa: ARG002 - as observers have it
        for each in tellings_of(effects):
            tell = self._log.error if each.level == "error" else self._log.info
            tell(each.words, **each.details)


class Recent:
    """Last of these lines with their time, for the page. Another observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: deque[tuple[str, Telling]] = deque(maxlen=RECENT_MAX)

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:  # noqa: ARG002 - as observers have it
        for each in tellings_of(effects):
            self._last.append((self._clock.wall_time(), each))

    def newest(self) -> list[tuple[str, Telling]]:
        """Return the lines, the newest first."""
        return list(reversed(self._last))
