"""Plays recorded days in three regions with files of requests beside the interactive load, in virtual time.

Each load is played alone, with a backlog that never ends, and with files that are handed in all day, each to be done
within a day. What one run alone leaves idle is what the others can use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.core.features.prices.price_table import MICROS, PriceTable
from gateway.core.vocabulary import PoolName, RegionName
from loadgen.figures import Figures
from loadgen.report import RequestReport, quantile
from loadgen.simulator.money import ANSWER_TOKEN_BYTES, PricedDay
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.simulator.world import Story, World
from loadgen.vocabulary import RequestEnd

DAY_S: Final = 720
REPLICAS: Final = 2
SLOTS: Final = 24
SHIFT_HOURS: Final = {"us-east-1": -5.0, "eu-west-1": 0.0, "ap-northeast-1": 9.0}
"""Hours by which each region's clock is ahead of the recorded one: one curve stands for all three."""
_JURISDICTIONS: Final = {"us-east-1": "US", "eu-west-1": "EU", "ap-northeast-1": "JP"}
_TUESDAY_HOURS: Final = 96.0
_WARM_S: Final = 30
_SECOND_NS: Final = 1_000_000_000
_PLACES: Final = 48
"""Lines that wait or run at once at each gateway: one for each slot of its region."""
_BACKLOG_LINES: Final = 8_000
_BACKLOG_DAYS: Final = 5
"""Window of the backlog: so long that no line is urgent on the day."""
_PROMPT_TOKEN_BYTES: Final = 4
FILES_A_DAY: Final = 8
FILE_LINES: Final = 180
_ONE_QUESTION: Final = {"turns": {"median": 1, "sigma": 0.1, "minimum": 1, "maximum": 1}}
_PEOPLE, _NIGHT = "people", "night"
_ORDERS = re.compile(r"(start|take back|end) (batch\d+:\d+)\S*( replica:)?")


class DayLoad(Struct, frozen=True):
    """Interactive load of a day."""

    name: str
    curve: str
    """Pattern of the recorded rates beneath the folder of traces."""
    mean: float
    """Conversations that begin in a second in each region, on average."""
    aside: bool = False
    """True if nothing was decided by it before it was played for the page."""


LOADS: Final = (
    DayLoad("code, 39% of all slots", "azure2024_digitised/code_hourly.csv", 0.75),
    DayLoad("code, half as much", "azure2024_digitised/code_hourly.csv", 0.4),
    DayLoad("conversations", "azure2024_digitised/conv_hourly.csv", 0.75),
    DayLoad("code, four fifths as much", "azure2024_digitised/code_hourly.csv", 0.6, aside=True),
    DayLoad("conversations, half as much", "azure2024_digitised/conv_hourly.csv", 0.4, aside=True),
)


class DayWork(StrEnum):
    """Work beside the interactive load."""

    NOTHING = "nothing"
    BACKLOG = "backlog"
    """Files that outlast the day."""
    NO_FILES = "no files"
    """Only the interactive load, on two days on which targets are chosen by price."""
    FILES = "files"
    """Files that are handed in on the first of two days, with targets chosen by price."""

    @property
    def is_by_price(self) -> bool:
        return self in (DayWork.NO_FILES, DayWork.FILES)


class DayCell(Struct, frozen=True):
    """One run."""

    load: DayLoad
    work: DayWork
    seed: int = 1
    day_s: int = DAY_S
    free_share: float | None = None
    """Share of an engine's room that lines leave free; None: the default."""

    def __str__(self) -> str:
        return f"{self.load.name}, {self.work}, seed {self.seed}"


def play(cell: DayCell, curve: Path) -> Figures:
    """Figures of one run. Raises ConfigError if the curve cannot be read."""
    scenario = parse_scenario(_document(cell, curve), Path(__file__).with_suffix(".yaml"))
    attempts = _Attempts(cell.day_s * _SECOND_NS)
    world = World(scenario, scenario.runs[0], on_line=attempts.read if scenario.batches else None)
    story = world.play()
    return {**_figures(cell, scenario, story), **attempts.figures()}


def _document(cell: DayCell, curve: Path) -> dict[str, Any]:
    day, load = cell.day_s, cell.load
    run: dict[str, Any] = {"system": "nightside"}
    if cell.work.is_by_price:
        run["placement"] = {"policy": "price", "price_first_token": "2s"}
    if cell.free_share is not None:
        run["classes"] = {"batch": {"free_share": cell.free_share}}
    document: dict[str, Any] = {
        "name": "batch-day",
        "seed": cell.seed,
        "duration": f"{day * 2}s" if cell.work.is_by_price else f"{day}s",
        "drain": f"{day}s",
        "slots": SLOTS,
        "round_trips": "../../demo/round_trips.csv",
        "prices": {"file": "../sharing/prices.yaml", "day": f"{day}s", "from_hours": 24.0},
        "regions": {name: {"jurisdiction": each, "replicas": REPLICAS} for name, each in _JURISDICTIONS.items()},
        "workloads": {"people": {"conversations": {}}, "lines": {"conversations": _ONE_QUESTION}},
        "clients": [
            {"region": name, "workload": "people", "tenant": _PEOPLE, "arrivals": {"recorded": {
                "file": str(curve), "day": f"{day}s", "mean": load.mean, "from_hours": _TUESDAY_HOURS,
                "shift_hours": ahead,
            }}}
            for name, ahead in SHIFT_HOURS.items()
        ],
        "runs": [run],
    }  # fmt: skip
    files = list(_files(cell))
    return document | ({"batches": {"files": files, "requests_max": _PLACES}} if files else {})


def _files(cell: DayCell) -> Iterator[dict[str, Any]]:
    """Files: one in each region that outlasts the day, or several in the first of two days."""
    for region in SHIFT_HOURS:
        file = {"region": region, "workload": "lines", "tenant": _NIGHT, "window": f"{cell.day_s}s"}
        if cell.work is DayWork.BACKLOG:
            lines = _BACKLOG_LINES * cell.day_s // DAY_S
            yield file | {"lines": lines, "at": "1s", "window": f"{_BACKLOG_DAYS * cell.day_s}s"}
        elif cell.work is DayWork.FILES:
            for number in range(FILES_A_DAY):
                at_s = 1 + number * cell.day_s // FILES_A_DAY
                yield file | {"lines": FILE_LINES * cell.day_s // DAY_S, "at": f"{at_s}s"}


# Figures


def _figures(cell: DayCell, scenario: Scenario, story: Story) -> Figures:
    until_ns = cell.day_s * _SECOND_NS
    first_ms = [
        (each.first_token_ns - each.sent_ns) / 1e6
        for each in story.records
        if each.tenant == _PEOPLE
        and each.first_token_ns is not None
        and _WARM_S * _SECOND_NS <= each.sent_ns < until_ns
    ]
    failed = [each for each in story.records if each.tenant == _PEOPLE and each.end is RequestEnd.FAILED]
    assert scenario.prices is not None, "the scenario has prices"
    assert story.money is not None, "the scenario has prices"
    day = scenario.prices.as_day(scenario.day_ns)
    return {
        "slot_s": cell.day_s * len(SHIFT_HOURS) * REPLICAS * SLOTS,
        "first_p50_ms": quantile(first_ms, 0.5),
        "first_p99_ms": quantile(first_ms, 0.99),
        "requests": len(first_ms),
        "failed": len(failed),
        "busy": _busy_share(story, until_ns),
        "bill": story.money["total"],
        "cheapest": _cheapest(day, story.records),
        "batches": [
            {
                "lines": each.section.lines,
                "completed": each.completed,
                "kept": each.is_kept,
                "tries": each.tries,
                "urgent": each.urgent,
            }
            for each in story.batches
        ],
    }


def _busy_share(story: Story, until_ns: int) -> float:
    """Share of all slots in use, over time."""
    looks = [each for samples in story.samples.values() for each in samples]
    within = [each for each in looks if _WARM_S * _SECOND_NS <= each.at_ns < until_ns]
    used = sum(min(SLOTS, outstanding) for each in within for outstanding in each.outstanding)
    return used / (SLOTS * sum(len(each.outstanding) for each in within))


def _cheapest(day: PricedDay, records: Sequence[RequestReport]) -> float:
    """Least that the lines of a run can add to the bill, by what is known afterwards: lines of regions with reserved
    replicas run there and add nothing, all others leave their region for the cheapest egress to one of those."""
    micros = 0.0
    for each in records:
        if each.tenant == _NIGHT and each.end is RequestEnd.COMPLETED:
            table = PriceTable(day.at(each.sent_ns))
            home = each.client_region
            price = table.of(home, PoolName("default"))
            assert price is not None, f"{home} has a price"
            if price.is_per_use:
                micros += min(_egress(table, home, RegionName(away), each, day.stretch) for away in SHIFT_HOURS)
    return micros / MICROS


def _egress(table: PriceTable, home: RegionName, away: RegionName, line: RequestReport, stretch: float) -> float:
    """Millionths of the currency for the way of a prompt there and of its answer back."""
    price = table.of(away, PoolName("default"))
    if price is None or price.is_per_use:
        return float("inf")
    prompt, answer = _PROMPT_TOKEN_BYTES * (line.prompt_tokens or 0), ANSWER_TOKEN_BYTES * line.output_tokens
    return table.egress_micros(home, away, prompt * stretch) + table.egress_micros(away, home, answer * stretch)


class _Attempts:
    """Attempts of lines at replicas within a day, read from the story's own lines."""

    def __init__(self, until_ns: int) -> None:
        self._until_ns = until_ns
        self._taken_ns: dict[str, int] = {}
        """Times at which lines were interrupted that have not started again."""
        self._started_ns: dict[str, int] = {}
        self._again_s: list[float] = []
        """Times from an interruption to the line's next start."""
        self._completed = 0
        self._used_s = 0.0
        """Seconds of slots in attempts that completed, or ran at the end of the day."""
        self._lost_s = 0.0
        """Seconds of slots in attempts that were interrupted."""

    def read(self, line: str) -> None:
        """Read one line of the story."""
        if "batch" not in line:
            return
        at, _, rest = line.partition(" ")
        at_ns = int(at)
        if at_ns >= self._until_ns:
            return
        for what, name, replica in _ORDERS.findall(rest):
            if what == "start" and replica:
                self._started_ns[name] = at_ns
                if (taken_ns := self._taken_ns.pop(name, None)) is not None:
                    self._again_s.append((at_ns - taken_ns) / _SECOND_NS)
            elif what != "start" and (started_ns := self._started_ns.pop(name, None)) is not None:
                took_s = (at_ns - started_ns) / _SECOND_NS
                if what == "take back":
                    self._taken_ns[name] = at_ns
                    self._lost_s += took_s
                else:
                    self._completed += 1
                    self._used_s += took_s

    def figures(self) -> Mapping[str, object]:
        """Figures up to the end of the day; lines that wait then have waited until then."""
        again_s = self._again_s + [(self._until_ns - each) / _SECOND_NS for each in self._taken_ns.values()]
        running_s = sum((self._until_ns - each) / _SECOND_NS for each in self._started_ns.values())
        return {
            "lines": self._completed,
            "interrupted": len(again_s),
            "again_p50_s": quantile(again_s, 0.5) if again_s else None,
            "again_p99_s": quantile(again_s, 0.99) if again_s else None,
            "used_s": self._used_s + running_s,
            "lost_s": self._lost_s,
        }
