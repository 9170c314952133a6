"""Plans the kills of a soak, and says which errors of its clients a kill explains, and whether what processes hold
stays the same. Pure values; a soak is played elsewhere.

It must never call an error explained that is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle
from statistics import median
from typing import Any

from gateway.core.vocabulary import Outcome
from loadgen.studies.long.flatness import Change, ProcessSample, change_of, long_lives
from loadgen.studies.outside.counts import COMPLETED, LEFT, NOT_FOUND, RunCounts

_SECOND_NS = 1_000_000_000
KILL_EVERY_S = 120.0
"""Time from one kill to the next."""
KILLS_OF_GATEWAY = 6
"""Number of kills of which one is the gateway's: it lives for longer than `decisions.steady_after`, and so counts as up
again soon."""
KILLS_MIN = 4
"""Kills of a shorter soak, which come faster."""
SAMPLE_S = 5.0
"""Time between two samples."""
DOWN_S = 10.0
"""Time for which a killed process stays away, and the least time from one kill to the next."""
REFUSED = "ConnectionRefusedError"
"""Part of AIPerf's text for a connection that no process accepts."""
_CONNECTING = "ClientConnectorError"
"""Kind of such an error."""
_LOST = (
    "ClientConnectionResetError", "ClientOSError", "ClientPayloadError", "ConnectionResetError",
    "ServerDisconnectedError",
)  # fmt: skip
"""Kinds of errors of a connection that was open and is lost, as AIPerf names them."""
CHUNK_S = 0.2
"""Time that may lie between two chunks of a stream: AIPerf ends a broken one with its last chunk, before the kill."""
_CANCELLED = "RequestCancellationError"
_BY_KILLS = (Outcome.FAILED_BEFORE_FIRST_BYTE, Outcome.FAILED_MIDSTREAM)
"""Failures of requests whose engine, or the peer that they were forwarded to, was killed."""
_EXPECTED = (COMPLETED, LEFT, NOT_FOUND, *_BY_KILLS)
"""Ends of requests that need no other reason than AIPerf and the kills: it asks every gateway for a page that it does
not have."""
_MIB = 1024
_POINTS_MIN = 4
"""Fewest values that are judged: one in each quarter."""


class ErrorCause(StrEnum):
    """Cause of an error of AIPerf's, as far as a kill explains it."""

    IN_FLIGHT = "in flight at the gateway when it was killed"
    REFUSED = "connection refused at the gateway's address until it was ready again"
    UNEXPLAINED = "not explained"


@dataclass(frozen=True, slots=True)
class SoakKill:
    """Death and return of a process. Times are wall time."""

    name: str
    killed_ns: int
    dead_ns: int
    """Time by which the process had ended; it was alive at `killed_ns`."""
    ready_ns: int
    """Time at which its successor was ready, or, if it never was, at which that was no longer waited for."""
    whole_ns: int | None
    """Time at which all gateways were attached to the controller and had met; None: not within the time allowed."""
    address: int | None
    """Number of the gateway's address among those that AIPerf sends to; None for an engine."""
    is_ready: bool = True
    """False: its successor was not ready within the time allowed."""


@dataclass(frozen=True, slots=True)
class SoakError:
    """One request that AIPerf counts as an error, but for those that it cancelled itself."""

    began_ns: int
    ended_ns: int
    address: int | None
    """Number of the address that it was sent to; None: AIPerf does not tell."""
    text: str
    """Kind, which begins with the status if there is one, and message."""

    @property
    def kind(self) -> str:
        return self.text.partition(":")[0]


@dataclass(frozen=True, slots=True)
class KeptSoak:
    """All that a soak has left beside AIPerf's own reports."""

    seconds: float
    version: str
    """Version of AIPerf."""
    machine: Mapping[str, object]
    command: str
    """Command with the names of places instead of ports and folders."""
    status: int | None
    """Exit status of AIPerf; None: it was ended at its deadline."""
    began_ns: int
    """Wall time of the first answer, from which samples are timed."""
    took_s: float
    """Time from AIPerf's start to its end."""
    kills: Sequence[SoakKill]
    processes: Sequence[ProcessSample]
    loads: Sequence[float]
    """Load averages of the machine over a minute, one for each sample."""
    ends: Mapping[str, Mapping[str, int]]
    """Requests of each gateway by their ends, over all of its lives, as last read in each."""
    addresses: Sequence[str]
    """Gateways in the order in which AIPerf sends to them."""
    rest: tuple[Mapping[str, int], Mapping[str, int]] = field(default_factory=lambda: ({}, {}))
    """Open file descriptors of each process at rest, before and after."""


@dataclass(frozen=True, slots=True)
class PlannedKill:
    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class HeldChange:
    """Figure of one process early and late in a soak."""

    what: str
    unit: str
    change: Change | None
    reason: str = ""
    """Reason for which it is not judged."""


def plan_kills(seconds: float, gateway: str, engines: Sequence[str]) -> list[PlannedKill]:
    """Kills of engines, each in its turn, and now and then of the gateway. The last comes early enough for its
    successor to serve before the load ends."""
    every_s = kill_every_s(seconds)
    engine = cycle(engines)
    count = int(seconds / every_s + 0.001) - 1
    middle = KILLS_OF_GATEWAY // 2
    return [
        PlannedKill(every_s * number, gateway if number % KILLS_OF_GATEWAY == middle else next(engine))
        for number in range(1, count + 1)
    ]


def kill_every_s(seconds: float) -> float:
    """Time from one kill to the next."""
    return max(DOWN_S, min(KILL_EVERY_S, seconds / (KILLS_MIN + 1)))


def errors_in(records: Iterable[Mapping[str, Any]], addresses: int) -> list[SoakError]:
    """Errors in AIPerf's records of single requests (`profile_export.jsonl`), which goes from address to address and
    numbers its requests from 0; a negative number is one that it did not know. Raises KeyError and TypeError for other
    records."""
    found = []
    for each in records:
        error, told = each.get("error"), each["metadata"]
        if error and error.get("type") != _CANCELLED:
            kind = " ".join(str(each) for each in (error.get("code"), error.get("type")) if each is not None)
            began_ns, ended_ns = told["request_start_ns"], told["request_end_ns"]
            address = told["session_num"] % addresses if told["session_num"] >= 0 else None
            found.append(SoakError(began_ns, ended_ns, address, f"{kind}: {error.get('message', '')}"))
    return found


def cause_of(error: SoakError, kills: Iterable[SoakKill]) -> ErrorCause:
    """Cause by a kill of the gateway that the request was sent to: never one of an answer with a status."""
    is_refused = error.kind == _CONNECTING and REFUSED in error.text
    for kill in kills:
        if error.address is None or kill.address != error.address:
            continue
        if error.kind in _LOST and _was_open(error, kill):
            return ErrorCause.IN_FLIGHT
        if is_refused and error.ended_ns >= kill.killed_ns and error.began_ns <= kill.ready_ns:
            return ErrorCause.REFUSED
    return ErrorCause.UNEXPLAINED


def _was_open(error: SoakError, kill: SoakKill) -> bool:
    least_ns = kill.killed_ns - CHUNK_S * _SECOND_NS
    return error.began_ns <= kill.dead_ns and least_ns <= error.ended_ns < kill.ready_ns


def causes_of(errors: Iterable[SoakError], kills: Sequence[SoakKill]) -> Counter[ErrorCause]:
    return Counter(cause_of(each, kills) for each in errors)


def held_in(soak: KeptSoak) -> Iterator[HeldChange]:
    """Memory and descriptors of each process: the second quarter of the soak beside its last. A process that is killed
    is judged by the last quarter of each life that lasts half the time to its next death, one life beside the other."""
    for name in dict.fromkeys(each.name for each in soak.processes):
        own = [each for each in soak.processes if each.name == name]
        spans = len({each.pid for each in own}) == 1
        for unit, figure, scale in (("resident MiB", "resident_kib", _MIB), ("descriptors", "descriptors", 1)):
            points = [(each.at_s, getattr(each, figure) / scale) for each in own]
            if not spans:
                points = [
                    (life[-1].at_s, median(getattr(each, figure) / scale for each in life[-(len(life) // 4 + 1) :]))
                    for life in long_lives(own, least_s=kill_every_s(soak.seconds))
                ]
            what = name if spans else f"{name}, its lives"
            yield _change(what, unit, points)
    before, after = soak.rest
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after:
            yield HeldChange(name, "descriptors at rest", Change(before[name], after[name], is_count=True))
        else:
            yield HeldChange(name, "descriptors at rest", None, "it did not run then")


def _change(what: str, unit: str, points: Sequence[tuple[float, float]]) -> HeldChange:
    if len(points) < _POINTS_MIN:
        return HeldChange(what, unit, None, f"there are {len(points)} values")
    try:
        return HeldChange(what, unit, replace(change_of(points), is_count=unit == "descriptors"))
    except ValueError as error:
        return HeldChange(what, unit, None, str(error))


def ends_of(soak: KeptSoak) -> Counter[str]:
    """Requests of all gateways by their ends."""
    found: Counter[str] = Counter()
    for each in soak.ends.values():
        found.update(each)
    return found


def soak_judgement(
    soak: KeptSoak, errors: Sequence[SoakError], counts: RunCounts, unread: str = ""
) -> list[tuple[bool, str]]:
    """Aims of a soak, each with whether it is met; `counts` are AIPerf's own, and `unread` is the reason why its
    report could not be read, if there is one."""
    whole = sum(each.whole_ns is not None for each in soak.kills)
    odd = {name: number for name, number in sorted(ends_of(soak).items()) if number and name not in _EXPECTED}
    named = "".join(f", {number} × `{name}`" for name, number in odd.items())
    found = [
        (soak.status == 0, f"AIPerf ended by itself (exit status {soak.status})"),
        *([(False, "AIPerf's report could be read")] if unread else _of_errors(soak, errors, counts)),
        (not odd, f"AIPerf or a kill can cause each end that gateways count ({sum(odd.values())} otherwise{named})"),
        (whole == len(soak.kills), f"all was whole again after each kill ({whole} of {len(soak.kills)})"),
    ]
    for each in held_in(soak):
        if each.change is None:
            found.append((False, f"{each.what}: {each.unit}: not judged: {each.reason}"))
        else:
            values = f"{each.change.early:,.1f}, then {each.change.late:,.1f}"
            found.append((each.change.is_flat, f"{each.what}: {each.unit} are flat ({values})"))
    return found


def _of_errors(soak: KeptSoak, errors: Sequence[SoakError], counts: RunCounts) -> Iterator[tuple[bool, str]]:
    causes = causes_of(errors, soak.kills)
    strange = causes[ErrorCause.UNEXPLAINED]
    yield not strange, f"a kill explains each error ({causes.total()} errors, {strange} without one)"
    told = f"{counts.failed} counted, {len(errors)} recorded"
    yield len(errors) == counts.failed, f"AIPerf counts the errors that it records ({told})"
