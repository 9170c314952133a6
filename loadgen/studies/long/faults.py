"""Plans random faults of a mesh from a seed, and says which failures of clients a fault explains. Pure values; they are
played elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
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
    HALT_GATEWAY = "gateway halted"
    HALT_ENGINE = "engine halted"
    HALT_CONTROLLER = "controller halted"
    CUT = "links cut"

    @property
    def is_kill(self) -> bool:
        return self in (LongFaultKind.KILL_GATEWAY, LongFaultKind.KILL_ENGINE)


class ClientFailure(StrEnum):
    """Kind of a failure, as a client tells it."""

    REFUSED = "refused"
    RESET = "reset"
    BROKEN = "broken stream"
    TIMED_OUT = "time-out"
    UNAVAILABLE = "HTTP 503"
    NAMELESS = "name that leads nowhere"


_LASTS_S = {
    LongFaultKind.KILL_GATEWAY: (1.0, 4.0),
    LongFaultKind.KILL_ENGINE: (1.0, 4.0),
    LongFaultKind.HALT_GATEWAY: (0.5, 5.0),
    LongFaultKind.HALT_ENGINE: (0.5, 5.0),
    LongFaultKind.HALT_CONTROLLER: (0.5, 5.0),
    LongFaultKind.CUT: (2.0, 7.0),
}
"""Shortest and longest duration; a killed process is started again after it."""
_LOST = frozenset({ClientFailure.BROKEN, ClientFailure.TIMED_OUT, ClientFailure.UNAVAILABLE})
EXPLAINS: Mapping[LongFaultKind, frozenset[ClientFailure]] = {
    LongFaultKind.KILL_GATEWAY: _LOST | {ClientFailure.REFUSED, ClientFailure.RESET},
    LongFaultKind.HALT_GATEWAY: _LOST | {ClientFailure.RESET},
    LongFaultKind.CUT: _LOST,
}
"""Failures that each kind of fault causes. Whatever an engine or the controller does, gateways carry on; a halted
gateway's host still accepts connections, and no client is behind a link that is cut."""
_NAMELESS = ("ClientConnectorDNSError:", "leads nowhere")
"""Beginning of the detail, and words in it."""
_BEGINNINGS = {
    "ClientConnectorError:": ClientFailure.REFUSED,
    "ClientOSError:": ClientFailure.RESET,
    "ClientConnectionResetError:": ClientFailure.RESET,
    "ConnectionResetError:": ClientFailure.RESET,
    "ServerDisconnectedError:": ClientFailure.RESET,
    "ClientPayloadError:": ClientFailure.BROKEN,
    "the stream ended without [DONE]": ClientFailure.BROKEN,
    "TimeoutError:": ClientFailure.TIMED_OUT,
    "ServerTimeoutError:": ClientFailure.TIMED_OUT,
    "ConnectionTimeoutError:": ClientFailure.TIMED_OUT,
    "SocketTimeoutError:": ClientFailure.TIMED_OUT,
    "HTTP 503:": ClientFailure.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    at_s: float
    kind: LongFaultKind
    target: str
    """Name of the process, or of the region whose links to all others are cut."""
    lasts_s: float

    @property
    def slot_ends_s(self) -> float:
        """End of the slot that the fault falls in, in seconds of the load."""
        return WARM_S + (int((self.at_s - WARM_S) / SLOT_S) + 1) * SLOT_S


@dataclass(frozen=True, slots=True)
class LongFaultPlayed:
    """A fault that was played. Times are seconds of the load."""

    fault: PlannedFault
    began_s: float
    over_s: float
    """Time at which all was whole: processes ready, gateways attached to the controller, and met by their peers; or at
    which the wait for that ended."""
    region: str = ""
    """Region whose gateway or links were struck; empty for an engine and the controller."""
    is_only_one: bool = False
    """True if the region has one gateway, and its policy admits none elsewhere for its clients."""
    is_whole: bool = True
    """False if all was not whole when the wait ended."""
    address: str = ""
    """Address of that region's gateway."""

    def is_in_time(self, seconds: float) -> bool:
        """True if it began within its slot, and before the load ended."""
        return self.began_s < min(self.fault.slot_ends_s, seconds)


def targets_of(
    gateways: Sequence[str], engines: Sequence[str], controller: str, regions: Sequence[str], spared: str
) -> dict[LongFaultKind, Sequence[str]]:
    """Targets of each kind of fault. `spared` is a gateway that is never killed, as the controller is not: one life of
    each spans the run."""
    return {
        LongFaultKind.KILL_GATEWAY: [each for each in gateways if each != spared],
        LongFaultKind.KILL_ENGINE: engines,
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


def failure_of(record: RequestReport) -> ClientFailure | None:
    """Kind of a failed request's failure; None for any other, such as a refusal by policy or an internal error, and for
    a request that was still waiting when the run ended."""
    if record.end is not RequestEnd.FAILED:
        return None
    if record.detail.startswith("error event:") and "engine_failed_midstream" in record.detail:
        return ClientFailure.BROKEN
    beginning, words = _NAMELESS
    if record.detail.startswith(beginning) and words in record.detail:
        return ClientFailure.NAMELESS
    return next((kind for begin, kind in _BEGINNINGS.items() if record.detail.startswith(begin)), None)


def explanation(record: RequestReport, played: Iterable[LongFaultPlayed]) -> LongFaultPlayed | None:
    """Fault that explains the failed request: the latest that began before its end, among those that cause its kind of
    failure, struck its client's region, the one that answered or that of the gateway it was sent to, and lasted at any
    moment of it. A name that leads nowhere is explained only where the one gateway is killed or halted that the policy
    of the client's region admits, and only until all is whole: no such answer is cached."""
    failure = failure_of(record)
    open_at = [each for each in played if each.began_s <= record.ended_ns / _SECOND_NS]
    is_explaining = _leaves_nameless if failure is ClientFailure.NAMELESS else partial(_explains, failure)
    return max((each for each in open_at if is_explaining(record, each)), key=lambda each: each.began_s, default=None)


def _explains(failure: ClientFailure | None, record: RequestReport, played: LongFaultPlayed) -> bool:
    is_sent_there = bool(played.address) and played.address == record.sent_to
    is_struck = is_sent_there or played.region in (record.client_region, record.served_by)
    is_soon = record.sent_ns / _SECOND_NS <= played.over_s + NAMED_S
    return is_struck and is_soon and failure in EXPLAINS.get(played.fault.kind, ())


def _leaves_nameless(record: RequestReport, played: LongFaultPlayed) -> bool:
    is_silent = played.fault.kind in (LongFaultKind.KILL_GATEWAY, LongFaultKind.HALT_GATEWAY) and played.is_only_one
    return is_silent and played.region == record.client_region and record.sent_ns / _SECOND_NS <= played.over_s


def unexplained(record: RequestReport, played: Iterable[LongFaultPlayed]) -> bool:
    """True if the request failed, and no fault explains that."""
    return record.end is not RequestEnd.COMPLETED and explanation(record, played) is None
