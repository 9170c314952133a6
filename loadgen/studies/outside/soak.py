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

from loadgen.studies.long.flatness import Change, ProcessSample, change_of, long_lives

_SECOND_NS = 1_000_000_000
KILL_EVERY_S = 120.0
"""Time from one kill to the next, of an engine and of the gateway in turn."""
KILLS_MIN = 4
"""Kills of a shorter soak, which come faster."""
SAMPLE_S = 5.0
"""Time between two samples."""
DOWN_S = 10.0
"""Time for which a killed process stays away, and the least time from one kill to the next."""
REFUSED = "ConnectionRefusedError"
"""Part of AIPerf's text for a refused connection."""
CHUNK_S = 1.0
"""Time that may lie between two chunks of a stream: AIPerf ends a broken one with its last chunk, before the kill."""
_CANCELLED = "RequestCancellationError"
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
    """Time at which its successor was ready."""
    whole_ns: int | None
    """Time at which all gateways were attached to the controller and had met; None: not within the time allowed."""
    address: int | None
    """Number of the gateway's address among those that AIPerf sends to; None for an engine."""


@dataclass(frozen=True, slots=True)
class SoakError:
    """One request that AIPerf counts as an error, but for those that it cancelled itself."""

    began_ns: int
    ended_ns: int
    address: int
    """Number of the address that it was sent to."""
    text: str


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
    decisions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Requests whose decisions each gateway keeps at the end, and their bytes by its own account."""
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
    """Kills of engines, each in its turn, and of the gateway alternately. The last comes early enough for its successor
    to serve before the load ends."""
    every_s = kill_every_s(seconds)
    engine = cycle(engines)
    count = int(seconds / every_s + 0.001) - 1
    return [PlannedKill(every_s * number, next(engine) if number % 2 else gateway) for number in range(1, count + 1)]


def kill_every_s(seconds: float) -> float:
    """Time from one kill to the next."""
    return max(DOWN_S, min(KILL_EVERY_S, seconds / (KILLS_MIN + 1)))


def errors_in(records: Iterable[Mapping[str, Any]], addresses: int) -> list[SoakError]:
    """Errors in AIPerf's records of single requests (`profile_export.jsonl`), which goes from address to address and
    numbers its requests from 0. Raises KeyError and TypeError for other records."""
    found = []
    for each in records:
        error, told = each.get("error"), each["metadata"]
        if error and error.get("type") != _CANCELLED:
            text = f"{error.get('type') or error.get('code')}: {error.get('message', '')}"
            began_ns, ended_ns = told["request_start_ns"], told["request_end_ns"]
            found.append(SoakError(began_ns, ended_ns, told["session_num"] % addresses, text))
    return found


def cause_of(error: SoakError, kills: Iterable[SoakKill]) -> ErrorCause:
    """Cause by a kill of the gateway that the request was sent to."""
    for kill in kills:
        if kill.address != error.address:
            continue
        if error.began_ns <= kill.dead_ns and error.ended_ns >= kill.killed_ns - CHUNK_S * _SECOND_NS:
            return ErrorCause.IN_FLIGHT
        if REFUSED in error.text and kill.killed_ns <= error.began_ns <= kill.ready_ns:
            return ErrorCause.REFUSED
    return ErrorCause.UNEXPLAINED


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
            if spans and figure == "resident_kib" and name in soak.decisions:
                yield _change(what, f"{unit} less kept decisions", _without(points, soak.decisions[name][1]))
    before, after = soak.rest
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after:
            yield HeldChange(name, "descriptors at rest", Change(before[name], after[name], is_count=True))
        else:
            yield HeldChange(name, "descriptors at rest", None, "it did not run then")


def _without(points: Sequence[tuple[float, float]], kept_bytes: int) -> list[tuple[float, float]]:
    """Points in MiB without what has been kept by then, of which the load adds the same in any time."""
    begin_s, end_s = points[0][0], points[-1][0]
    return [(at_s, value - kept_bytes / 2**20 * (at_s - begin_s) / max(end_s - begin_s, 1.0)) for at_s, value in points]


def _change(what: str, unit: str, points: Sequence[tuple[float, float]]) -> HeldChange:
    if len(points) < _POINTS_MIN:
        return HeldChange(what, unit, None, f"there are {len(points)} values")
    try:
        return HeldChange(what, unit, replace(change_of(points), is_count=unit == "descriptors"))
    except ValueError as error:
        return HeldChange(what, unit, None, str(error))


def soak_judgement(soak: KeptSoak, errors: Sequence[SoakError]) -> list[tuple[bool, str]]:
    """Aims, each with whether it is met."""
    causes = causes_of(errors, soak.kills)
    strange = causes[ErrorCause.UNEXPLAINED]
    whole = sum(each.whole_ns is not None for each in soak.kills)
    found = [
        (soak.status == 0, f"AIPerf ended by itself (exit status {soak.status})"),
        (not strange, f"a kill explains each error ({causes.total()} errors, {strange} without one)"),
        (whole == len(soak.kills), f"all was whole again after each kill ({whole} of {len(soak.kills)})"),
    ]
    for each in held_in(soak):
        if each.change is None:
            found.append((False, f"{each.what}: {each.unit}: not judged: {each.reason}"))
        else:
            values = f"{each.change.early:,.1f}, then {each.change.late:,.1f}"
            found.append((each.change.is_flat, f"{each.what}: {each.unit} are flat ({values})"))
    return found
