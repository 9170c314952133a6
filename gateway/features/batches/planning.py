"""Plan of a batch before it is handed in: when its last line would end, and in which regions it would cost what.

The work of the file is one divisible job, which is played forward over the shares of the places, the room of the
regions and the prices, each constant for a while. Time is in seconds from now. It reads no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Protocol

from msgspec import Struct

from gateway.features.batches.outlook import BatchOutlook, PlaceShare

_TINY = 1e-9
"""Part of a file that is not worth another stretch of time, and the shortest work of a line in seconds."""
_NS = 1e-9


class WindowAnswer(StrEnum):
    """Answer to whether the window is kept."""

    KEPT = "kept"
    MISSED = "missed"
    UNKNOWN = "unknown"


class FileWork(Struct, frozen=True):
    """Sums over a file that decide how long it takes."""

    lines: int
    prompt_tokens: int
    output_tokens: float

    def times_ns(self, outlook: BatchOutlook) -> dict[str, tuple[float, float]]:
        """Nanoseconds of prefill and of decoding of all lines one after another, by region whose pace is known."""
        return {
            each.region: (each.prompt_ns * self.prompt_tokens, each.output_ns * self.output_tokens)
            for each in outlook.regions
            if each.prompt_ns is not None and each.output_ns is not None
        }


class FileCost(Protocol):
    """Cost of the whole file in one region."""

    @property
    def money(self) -> float: ...
    @property
    def adds(self) -> float: ...


class PricedStretch(Protocol):
    """Stretch of time, in seconds since 1970, with the costs by region."""

    @property
    def from_s(self) -> int: ...
    @property
    def until_s(self) -> int: ...
    @property
    def costs(self) -> Mapping[str, FileCost]: ...


class PlannedRegion(Struct, frozen=True):
    """Region that may run lines."""

    region: str
    lines_at_once: int
    """Room for lines at this moment, before the limit on lines at once."""
    share: float
    """Part of the file that is expected to run there."""
    finish_s: float | None
    """End of the last line if the whole file ran there; None: never by its present room, or not known."""
    money: float | None = None
    """Cost of the whole file there while it runs; None: no price is known, or no end."""
    adds: float | None = None
    """Addition to the bill."""


class PlanPart(Struct, frozen=True):
    """Part of the cheapest plan: lines that run in one region."""

    region: str
    from_s: float
    until_s: float
    lines: int
    money: float
    adds: float


class Spending(Struct, frozen=True):
    """Cost of the file as a whole."""

    money: float
    adds: float


class _Stretch(Struct, frozen=True):
    """Time with one share of the places, and one set of prices."""

    from_s: float
    until_s: float
    share: float
    costs: Mapping[str, FileCost]


class Planner:
    """Plays one file forward under one outlook."""

    def __init__(self, outlook: BatchOutlook, work: FileWork) -> None:
        self._outlook = outlook
        self._work = work
        self._works_s = {region: max(_TINY, sum(each_ns) * _NS) for region, each_ns in work.times_ns(outlook).items()}
        self._rooms = {each.region: each.lines for each in outlook.regions if each.region in self._works_s}

    @property
    def begins_s(self) -> float | None:
        """Time of the first line, by the batches before; None: never within their windows."""
        return next((each.from_s for each in self._outlook.shares if each.share > 0), None)

    @property
    def has_pace(self) -> bool:
        """True if the pace of the model is known in a region."""
        return bool(self._works_s)

    def shares(self) -> dict[str, float]:
        """Part of the file that each region is expected to run: regions run lines as fast as their room lets them."""
        rates = {region: self._rooms[region] / work_s for region, work_s in self._works_s.items()}
        total = sum(rates.values())
        return {region: rate / total if total else 0.0 for region, rate in rates.items()}

    def finish_s(self, region: str | None = None) -> float | None:
        """End of the last line in all regions together, or in one alone; None: never with the room of this moment."""
        left = 1.0
        for each, end_s in self._shares():
            rate = self._rate(each.share, region)
            if rate > 0 and left / rate <= end_s - each.from_s:
                return each.from_s + left / rate
            left -= rate * (end_s - each.from_s) if rate else 0.0
        return None

    def _shares(self) -> list[tuple[PlaceShare, float]]:
        """Shares of the places, each with the time at which it ends."""
        shares = self._outlook.shares
        return list(zip(shares, [*(each.from_s for each in shares[1:]), inf], strict=True))

    def _places(self, share: float) -> float:
        """Lines of this batch that its places let run at once."""
        own_max = self._outlook.own_requests_max
        return min(self._outlook.lines_at_once * share, self._work.lines, inf if own_max is None else own_max)

    def _rate(self, share: float, region: str | None) -> float:
        """Parts of the file that are done in a second. Other batches have their shares of the room, too."""
        rooms = self._rooms if region is None else {region: self._rooms.get(region, 0)}
        room = sum(rooms.values())
        if not room:
            return 0.0
        scale = min(share, self._places(share) / room)
        rate = scale * sum(lines / self._works_s[each] for each, lines in rooms.items())
        return min(rate, self._rate_max())

    def _rate_max(self) -> float:
        """Parts of the file in a second that the client's limits let through."""
        outlook, work = self._outlook, self._work
        most = inf
        if outlook.requests_per_minute is not None:
            most = outlook.requests_per_minute / 60 / max(1, work.lines)
        if outlook.tokens_per_minute is not None:
            most = min(most, outlook.tokens_per_minute / 60 / max(1.0, work.prompt_tokens + work.output_tokens))
        return most

    # Money

    def regions(self, costs: Sequence[PricedStretch], now_s: int) -> list[PlannedRegion]:
        """Each region that may run lines, with the end and the cost of the whole file there."""
        shares = self.shares()
        told = []
        for each in self._outlook.regions:
            finish_s = self.finish_s(each.region)
            spent = None if finish_s is None else self._spent(each.region, finish_s, costs, now_s)
            money, adds = (None, None) if spent is None else (spent.money, spent.adds)
            told.append(PlannedRegion(each.region, each.lines, shares.get(each.region, 0.0), finish_s, money, adds))
        return told

    def _spent(self, region: str, finish_s: float, costs: Sequence[PricedStretch], now_s: int) -> Spending | None:
        """Cost of the whole file in one region, where it runs from its turn to that end. Prices beyond the last stretch
        are those of its end."""
        stretches = self._stretches(costs, now_s)
        if not stretches or any(region not in each.costs for each in stretches):
            return None
        left, money, adds = 1.0, 0.0, 0.0
        for each in stretches:
            cost = each.costs[region]
            done = min(left, self._rate(each.share, region) * max(0.0, min(each.until_s, finish_s) - each.from_s))
            money, adds, left = money + done * cost.money, adds + done * cost.adds, left - done
        last = stretches[-1].costs[region]
        return Spending(money + left * last.money, adds + left * last.adds)

    def cheapest(self, costs: Sequence[PricedStretch], now_s: int) -> list[PlanPart]:
        """Plan with the least addition to the bill within the stretches that have costs: the cheapest region and time
        is filled first, within the room, the places and the client's limits. Empty: the file does not fit in."""
        stretches = [each for each in self._stretches(costs, now_s) if each.share > 0]
        places = [self._places(each.share) * (each.until_s - each.from_s) for each in stretches]
        passes = [self._rate_max() * (each.until_s - each.from_s) for each in stretches]
        options = [
            (cost.adds, cost.money, each.from_s, index, region)
            for index, each in enumerate(stretches)
            for region, cost in each.costs.items()
            if self._rooms.get(region)
        ]
        parts: dict[tuple[int, str], float] = {}
        left = 1.0
        for *_, index, region in sorted(options):
            each, work_s = stretches[index], self._works_s[region]
            room = self._rooms[region] * each.share * (each.until_s - each.from_s)
            part = min(left, min(room, places[index]) / work_s, passes[index])
            if part > 0:
                parts[index, region] = part
                places[index] -= part * work_s
                passes[index] -= part
                left -= part
            if left <= _TINY:
                return self._parts(parts, stretches)
        return []

    def _parts(self, parts: dict[tuple[int, str], float], stretches: Sequence[_Stretch]) -> list[PlanPart]:
        told: list[PlanPart] = []
        for (index, region), part in sorted(parts.items()):
            stretch = stretches[index]
            cost = stretch.costs[region]
            until_s = min(stretch.until_s, stretch.from_s + part / self._rate(stretch.share, region))
            lines = round(part * self._work.lines)
            told.append(PlanPart(region, stretch.from_s, until_s, lines, part * cost.money, part * cost.adds))
        return told

    def _stretches(self, costs: Sequence[PricedStretch], now_s: int) -> list[_Stretch]:
        """Times in which neither the share nor a price changes, as far as there are costs."""
        found = []
        for span in costs:
            for each, end_s in self._shares():
                from_s, until_s = max(each.from_s, span.from_s - now_s), min(end_s, span.until_s - now_s)
                if from_s < until_s:
                    found.append(_Stretch(from_s, until_s, each.share, span.costs))
        return found


class BatchPlan(Struct, frozen=True, kw_only=True):
    """Plan of a valid file. Times are seconds from now."""

    answer: WindowAnswer
    window_s: int
    begins_s: float | None
    """Time of the first line; None: after the windows of the batches before."""
    finish_s: float | None
    """Expected end of the last line; None: not known, or never by the room of this moment."""
    latest_finish_s: float | None
    """End of the last line if every answer is as long as its line allows."""
    not_known: list[str]
    """Facts that the plan could not go by, in words."""
    regions: list[PlannedRegion]
    spending: Spending | None
    """Expected cost; None: no prices are known."""
    cheapest: list[PlanPart]
    """Cheapest plan within the policy and the window; empty: none is known."""
    cheapest_spending: Spending | None


def plan_of(
    outlook: BatchOutlook,
    work: FileWork,
    longest: FileWork,
    costs: Sequence[PricedStretch],
    *,
    now_s: int,
    window_s: int,
) -> BatchPlan:
    """Plan of a file that is handed in now. `longest`: its work if every answer is as long as its line allows; `costs`
    are those within the window, one stretch after the other, and empty where no prices are known."""
    planner = Planner(outlook, work)
    not_known = list(_not_known(outlook, planner))
    finish_s = planner.finish_s()
    regions = planner.regions(costs, now_s)
    cheapest = planner.cheapest(costs, now_s)
    if finish_s is not None and finish_s <= window_s:
        answer = WindowAnswer.KEPT
    else:
        answer = WindowAnswer.UNKNOWN if not_known else WindowAnswer.MISSED
    return BatchPlan(
        answer=answer,
        window_s=window_s,
        begins_s=planner.begins_s,
        finish_s=finish_s,
        latest_finish_s=Planner(outlook, longest).finish_s(),
        not_known=not_known,
        regions=regions,
        spending=_expected_spending(regions),
        cheapest=cheapest,
        cheapest_spending=_sum_of(cheapest),
    )


def _not_known(outlook: BatchOutlook, planner: Planner) -> Iterator[str]:
    """Facts whose lack keeps a late end from being certain."""
    if not planner.has_pace:
        yield "the pace of the model: no request of it has completed at this gateway since it started"
    elif not any(each.lines for each in outlook.regions):
        yield "when engines are idle: at this moment no region has room for a line"
    if outlook.unknown_ahead:
        what = "batch" if outlook.unknown_ahead == 1 else "batches"
        yield f"the pace of {outlook.unknown_ahead:,} {what} before it, taken to last until the end of the window"


def _expected_spending(regions: Sequence[PlannedRegion]) -> Spending | None:
    """Cost of the file as it is expected to spread over regions; None: a region that takes part has no price."""
    used = [each for each in regions if each.share > 0]
    if not used or any(each.money is None or each.adds is None for each in used):
        return None
    money = sum(each.share * (each.money or 0.0) for each in used)
    return Spending(money, sum(each.share * (each.adds or 0.0) for each in used))


def _sum_of(parts: Sequence[PlanPart]) -> Spending | None:
    return Spending(sum(each.money for each in parts), sum(each.adds for each in parts)) if parts else None
