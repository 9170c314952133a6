"""Plans random faults of a mesh from a seed, and says which failures of clients a fault explains. Pure values; they are
played elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from loadgen.report import RequestReport
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000
_Name = TypeVar("_Name")
WARM_S = 20.0
"""Time without a fault at the beginning."""
RETURN_S = 20.0
"""Time without a fault at the end, in which everything is whole again."""
SLOT_S = 20.0
"""Time in which one fault falls."""
NAMED_S = 8.0
"""Time after a gateway serves again, or links are whole, in which clients may still meet the effects: an answer of the
name is cached for five seconds."""


class LongFaultKind(StrEnum):
    KILL_GATEWAY = "gateway killed"
    KILL_ENGINE = "engine killed"
    KILL_CONTROLLER = "controller killed"
    HALT_GATEWAY = "gateway halted"
    HALT_ENGINE = "engine halted"
    HALT_CONTROLLER = "controller halted"
    CUT = "links cut"

    @property
    def is_kill(self) -> bool:
        return self in (LongFaultKind.KILL_GATEWAY, LongFaultKind.KILL_ENGINE, LongFaultKind.KILL_CONTROLLER)


_LASTS_S = {
    LongFaultKind.KILL_GATEWAY: (1.0, 4.0),
    LongFaultKind.KILL_ENGINE: (1.0, 4.0),
    LongFaultKind.KILL_CONTROLLER: (1.0, 4.0),
    LongFaultKind.HALT_GATEWAY: (0.5, 5.0),
    LongFaultKind.HALT_ENGINE: (0.5, 5.0),
    LongFaultKind.HALT_CONTROLLER: (0.5, 5.0),
    LongFaultKind.CUT: (2.0, 7.0),
}
"""Shortest and longest duration; a killed process is started again after it."""
EXPLAINS = (LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY, LongFaultKind.CUT)
"""Faults by which requests may fail: whatever an engine or the controller does, gateways carry on."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    at_s: float
    kind: LongFaultKind
    target: str
    """Name of the process, or of the region whose links to all others are cut."""
    lasts_s: float


@dataclass(frozen=True, slots=True)
class LongFaultPlayed:
    """A fault that was played. Times are seconds of the load."""

    fault: PlannedFault
    began_s: float
    over_s: float
    """Time at which all was restored: a process that was started again is ready."""


def targets_of(
    gateways: Sequence[str], engines: Sequence[str], controller: str, regions: Sequence[str]
) -> dict[LongFaultKind, Sequence[str]]:
    """Targets of each kind of fault."""
    return {
        LongFaultKind.KILL_GATEWAY: gateways,
        LongFaultKind.KILL_ENGINE: engines,
        LongFaultKind.KILL_CONTROLLER: [controller],
        LongFaultKind.HALT_GATEWAY: gateways,
        LongFaultKind.HALT_ENGINE: engines,
        LongFaultKind.HALT_CONTROLLER: [controller],
        LongFaultKind.CUT: regions,
    }


def plan_faults(seconds: float, seed: int, targets: Mapping[LongFaultKind, Sequence[str]]) -> list[PlannedFault]:
    """Faults in order of time, one in each slot at a random moment.

    Every kind, and of each kind every target, is played once before any is played again.
    """
    rng = random.Random(seed)
    turns = {kind: _turns(rng, names) for kind, names in targets.items()}
    kinds = _turns(rng, list(targets))
    planned = []
    for number in range(int((seconds - WARM_S - RETURN_S) / SLOT_S)):
        kind = next(kinds)
        at_s = WARM_S + number * SLOT_S + rng.uniform(0, SLOT_S / 3)
        planned.append(PlannedFault(at_s, kind, next(turns[kind]), rng.uniform(*_LASTS_S[kind])))
    return planned


def _turns(rng: random.Random, names: Sequence[_Name]) -> Iterator[_Name]:
    """All names again and again, shuffled each time."""
    while True:
        yield from rng.sample(names, len(names))


def unexplained(record: RequestReport, played: Sequence[LongFaultPlayed]) -> bool:
    """True if the request failed, and no fault that may fail requests lasted at any moment of it."""
    sent_s, ended_s = record.sent_ns / _SECOND_NS, record.ended_ns / _SECOND_NS
    return record.end is not RequestEnd.COMPLETED and not any(
        each.fault.kind in EXPLAINS and sent_s <= each.over_s + NAMED_S and ended_s >= each.began_s for each in played
    )
