"""Judges whether figures of a long run stay the same: their second quarter beside their last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

FLAT_SHARE = 0.05
"""Largest change that counts as none, as a share."""
FLAT_COUNT = 2
"""The same, of a count."""
LIFE_MIN_S = 100.0
"""Shortest life of a process that is judged: its first quarter fills what is bounded."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment."""

    at_s: float
    name: str
    pid: int
    resident_kib: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class StoredSample:
    """Bytes on the disk at one moment, by kind, and the number of requests that gateways had logged by then: of all
    together, and of each by name."""

    at_s: float
    stored: Mapping[str, int]
    requests: int
    by_gateway: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in the second and in the last quarter of a time."""

    early: float
    late: float
    is_count: bool = False

    @property
    def share(self) -> float:
        """Change from the one to the other, as a share of the first."""
        return (self.late - self.early) / self.early if self.early else float(bool(self.late))

    @property
    def is_flat(self) -> bool:
        return abs(self.share) <= FLAT_SHARE or (self.is_count and abs(self.late - self.early) <= FLAT_COUNT)


def long_lives(samples: Iterable[ProcessSample], least_s: float = LIFE_MIN_S) -> list[list[ProcessSample]]:
    """Samples of each process from its start to its end, in order of time, without short lives; a process that is
    started again lives anew."""
    found: dict[tuple[str, int], list[ProcessSample]] = {}
    for each in samples:
        found.setdefault((each.name, each.pid), []).append(each)
    return [life for life in found.values() if life[-1].at_s - life[0].at_s >= least_s]


def change_of(points: Sequence[tuple[float, float]]) -> Change:
    """Change of the median of values over time, in order of time. Raises ValueError without a value in a quarter."""
    early, late = (_within(points, number) for number in (1, 3))
    if not early or not late:
        raise ValueError("a quarter is without a value")
    return Change(median(value for _, value in early), median(value for _, value in late))


def change_per_request(samples: Sequence[StoredSample], kind: str) -> Change:
    """Change of the bytes of one kind that were added for each request, in order of time. Raises ValueError where none
    ended in a quarter."""
    growths = []
    for number in (1, 3):
        within = _within([(each.at_s, each) for each in samples], number)
        if not within or within[-1][1].requests == within[0][1].requests:
            raise ValueError("in a quarter no request has ended")
        (_, first), (_, last) = within[0], within[-1]
        growths.append((last.stored[kind] - first.stored[kind]) / (last.requests - first.requests))
    early, late = growths
    return Change(early, late)


def requests_between(samples: Sequence[StoredSample], life: Sequence[ProcessSample]) -> int:
    """Requests from the middle of the second quarter of a process's life to that of the last, in order of time: those
    that the process itself logged if it is a gateway, of all gateways otherwise. Raises ValueError without any."""
    begin_s, lasts_s = life[0].at_s, life[-1].at_s - life[0].at_s
    within = [each for each in samples if 3 / 8 * lasts_s <= each.at_s - begin_s <= 7 / 8 * lasts_s]
    counts = [each.by_gateway.get(life[0].name, each.requests) for each in within]
    if not counts or counts[-1] == counts[0]:
        raise ValueError("in its life no request has ended")
    return counts[-1] - counts[0]


def _within(points: Sequence[tuple[float, _Value]], number: int) -> list[tuple[float, _Value]]:
    """Points of one quarter of the time, counted from 0."""
    if not points:
        return []
    begin, quarter = points[0][0], (points[-1][0] - points[0][0]) / 4
    return [(at_s, value) for at_s, value in points if number * quarter <= at_s - begin <= (number + 1) * quarter]
