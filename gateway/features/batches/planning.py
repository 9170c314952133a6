"""Plan of a batch before it is handed in: when its last line would end, and what it would cost in which region.

The work of the file is one divisible job, which is played forward over the shares of the batch, the room of the regions
and the prices, each constant for a while. Time is in seconds from now. It reads no clock and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf

from msgspec import Struct

from gateway.features.batches.outlook import BatchOutlook, PlaceShare
from gateway.features.batches.paces import REQUESTS_MIN
from gateway.features.prices.work_costs import CostSpan

_WORK_MIN_S = 1e-9
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


class PlannedRegion(Struct, frozen=True):
    """Region that may run lines, if the whole file ran there."""

    region: str
    lines_at_once: int
    """Room for lines at this moment, before the limit on lines at once."""
    finish_s: float | None
    """End of the last line; None: never by its present room, or not known."""
    money: float | None = None
    """Cost of replica time and egress; None: no price is known, or no end."""
    adds: float | None = None
    """Addition to the bill."""


class Planner:
    """Plays one file forward under one outlook."""

    def __init__(self, outlook: BatchOutlook, work: FileWork) -> None:
        self._outlook = outlook
        self._work = work
        self._works_s = {
            region: max(_WORK_MIN_S, sum(each_ns) * _NS) for region, each_ns in work.times_ns(outlook).items()
        }
        self.rooms = {each.region: each.lines for each in outlook.regions if each.region in self._works_s}
        """Lines that could run at once, by region whose pace is known."""

    def finish_s(self, rooms: Mapping[str, int]) -> float | None:
        """End of the last line in these regions together; None: never with that room."""
        left = 1.0
        for each, end_s in self._shares():
            rate = self._rate(each, rooms)
            if rate and left <= rate * (end_s - each.from_s):
                return each.from_s + left / rate
            left -= rate and rate * (end_s - each.from_s)
        return None

    def _shares(self) -> Iterator[tuple[PlaceShare, float]]:
        """Shares of the batch, each with the time at which it ends."""
        shares = self._outlook.shares
        return zip(shares, [*(each.from_s for each in shares[1:]), inf], strict=True)

    def _rate(self, share: PlaceShare, rooms: Mapping[str, int]) -> float:
        """Parts of the file that are done in a second."""
        outlook, work, room = self._outlook, self._work, sum(rooms.values())
        if not room:
            return 0.0
        places = min(outlook.lines_at_once * share.places, work.lines, _or_inf(outlook.own_requests_max))
        scale = min(share.room, places / room)
        return min(
            scale * sum(lines / self._works_s[region] for region, lines in rooms.items()),
            _or_inf(outlook.requests_per_minute) / 60 / max(1, work.lines),
            _or_inf(outlook.tokens_per_minute) / 60 / max(1.0, work.prompt_tokens + work.output_tokens),
        )

    # Regions

    def regions(self, costs: Sequence[CostSpan], now_s: int) -> list[PlannedRegion]:
        """Each region that may run lines, with the end and the cost of the whole file there."""
        return [self._planned(each.region, each.lines, costs, now_s) for each in self._outlook.regions]

    def _planned(self, region: str, lines: int, costs: Sequence[CostSpan], now_s: int) -> PlannedRegion:
        """Region with the cost of the file by the prices of the time at which it runs there. Prices beyond the last
        span are those of its end."""
        rooms = {region: self.rooms.get(region, 0)}
        finish_s = self.finish_s(rooms)
        if finish_s is None or not costs or any(region not in each.costs for each in costs):
            return PlannedRegion(region, lines, finish_s)
        money = adds = before = 0.0
        for each in costs:
            done = 1.0 if each is costs[-1] else self._done(rooms, each.until_s - now_s)
            money += (done - before) * each.costs[region].money
            adds += (done - before) * each.costs[region].adds
            before = done
        return PlannedRegion(region, lines, finish_s, money, adds)

    def _done(self, rooms: Mapping[str, int], at_s: float) -> float:
        """Part of the file that is done at a time."""
        spans = [(each, min(end_s, at_s) - each.from_s) for each, end_s in self._shares()]
        return min(1.0, sum(self._rate(each, rooms) * max(0.0, span_s) for each, span_s in spans))


class BatchPlan(Struct, frozen=True, kw_only=True):
    """Plan of a valid file. Times are seconds from now."""

    answer: WindowAnswer
    window_s: int
    begins_s: float
    """Time of the first line."""
    finish_s: float | None
    """Expected end of the last line in all regions together; None: not known, or never by the room of this moment."""
    latest_finish_s: float | None
    """End of the last line if every answer is as long as its line allows."""
    not_known: list[str]
    """Facts that the plan could not go by, in words."""
    regions: list[PlannedRegion]
    cheapest: str | None
    """Region that alone keeps the window and adds least to the bill; None: none is known."""


def plan_of(
    outlook: BatchOutlook,
    work: FileWork,
    longest: FileWork,
    costs: Sequence[CostSpan],
    *,
    now_s: int,
    window_s: int,
) -> BatchPlan:
    """Plan of a file that is handed in now. `longest`: its work if every answer is as long as its line allows; `costs`
    are those within the window, one span after the other, and empty where no prices are known."""
    planner, at_most = Planner(outlook, work), Planner(outlook, longest)
    not_known = list(_not_known(outlook, planner))
    finish_s = planner.finish_s(planner.rooms)
    if finish_s is not None and finish_s <= window_s:
        answer = WindowAnswer.KEPT
    else:
        answer = WindowAnswer.UNKNOWN if not_known else WindowAnswer.MISSED
    regions = planner.regions(costs, now_s)
    return BatchPlan(
        answer=answer,
        window_s=window_s,
        begins_s=next(each.from_s for each in outlook.shares if each.places),
        finish_s=finish_s,
        latest_finish_s=at_most.finish_s(at_most.rooms),
        not_known=not_known,
        regions=regions,
        cheapest=_cheapest(regions, window_s),
    )


def _cheapest(regions: Sequence[PlannedRegion], window_s: int) -> str | None:
    options = [
        (each.adds, each.money, each.region)
        for each in regions
        if each.adds is not None and each.money is not None and (each.finish_s or 0.0) <= window_s
    ]
    return min(options)[-1] if options else None


def _not_known(outlook: BatchOutlook, planner: Planner) -> Iterator[str]:
    """Facts whose lack keeps a late end from being certain."""
    if not outlook.regions:
        yield "where the model is served: no region that the policy allows serves it at this moment"
    elif not any(each.lines for each in outlook.regions):
        yield "when engines are idle: at this moment no region has room for a line"
    if outlook.regions and not planner.rooms:
        yield f"the pace of the model: fewer than {REQUESTS_MIN} requests of it completed since the gateway started"
    if outlook.waits_for_unknown:
        yield "the pace of batches before it, taken to last until the end of their windows"


def _or_inf(limit: int | None) -> float:
    return inf if limit is None else limit
