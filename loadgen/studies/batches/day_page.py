"""Page of days with batches. It counts, and names each aim that is missed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from msgspec import Struct

from loadgen.figures import Figures
from loadgen.studies.batches import day
from loadgen.studies.batches.day import LOADS, DayLoad, DayWork
from loadgen.studies.rendering import render

IDLE_MIN: Final = 0.9
LATER_MAX: Final = 1.03
KEPT_MIN: Final = 0.95
BILL_MAX: Final = 1.10
AGAIN_MAX_S: Final = 2.0


class DayRow(Struct, frozen=True):
    """Day under one load."""

    load: DayLoad
    alone: Figures
    backlog: Figures
    no_files: Figures
    files: Figures

    @property
    def idle_used(self) -> float:
        """Time of slots in attempts of lines that were not interrupted, in that which the interactive load leaves idle
        where it is alone."""
        return float(self.backlog["used_s"]) / ((1 - float(self.alone["busy"])) * self.slot_seconds)

    @property
    def slot_seconds(self) -> int:
        """Seconds of all slots over the day."""
        return int(self.alone["slot_s"])

    @property
    def later(self) -> float:
        """Factor by which first tokens are later at p99."""
        return float(self.backlog["first_p99_ms"]) / float(self.alone["first_p99_ms"])

    @property
    def kept(self) -> int:
        return sum(each["kept"] for each in self.files["batches"])

    @property
    def kept_share(self) -> float:
        return self.kept / len(self.files["batches"])

    @property
    def lines(self) -> int:
        return sum(each["completed"] for each in self.files["batches"])

    @property
    def bill_share(self) -> float:
        """Bill of the run with files, in bills of the best plan in hindsight."""
        return float(self.files["bill"]) / self.best

    @property
    def best(self) -> float:
        """Bill of the interactive load alone, with the least that the lines can add to it."""
        return float(self.no_files["bill"]) + float(self.files["cheapest"])


def page_of(found: Mapping[Any, Figures], machine: Mapping[str, object]) -> str:
    """Page, by the figures of each load and what is beside it."""
    rows = [_row(load, found) for load in LOADS]
    return render("batches/day_page.j2", machine=machine, rows=rows, day=day, judged=[*_judged(rows)])


def _row(load: DayLoad, found: Mapping[Any, Figures]) -> DayRow:
    def of(work: DayWork) -> Figures:
        place: Hashable = (load.name, work)
        return found[place]

    return DayRow(load, of(DayWork.NOTHING), of(DayWork.BACKLOG), of(DayWork.NO_FILES), of(DayWork.FILES))


def _judged(rows: list[DayRow]) -> list[str]:
    again = [row.backlog["again_p99_s"] for row in rows if row.backlog["again_p99_s"] is not None]
    failed = sum(figures["failed"] for row in rows for figures in (row.alone, row.backlog, row.no_files, row.files))
    return [
        _line([row.idle_used for row in rows], IDLE_MIN, "idle slots used, over time", "{:.0%}", is_least=True),
        _line([row.later for row in rows], LATER_MAX, "first tokens beside a backlog at p99, in those alone", "{:.2f}"),
        _line([row.kept_share for row in rows], KEPT_MIN, "windows kept", "{:.0%}", is_least=True),
        _line([row.bill_share for row in rows], BILL_MAX, "bill, in those of the best plan in hindsight", "{:.3f}"),
        _line(again, AGAIN_MAX_S, "seconds until an interrupted line runs again, at p99", "{:.1f}"),
        f"{_word(not failed)}: no interactive request failed ({failed})",
    ]


def _line(values: list[float], aim: float, what: str, form: str, *, is_least: bool = False) -> str:
    are_met = [value >= aim if is_least else value <= aim for value in values]
    bound = f"at {'least' if is_least else 'most'} {form.format(aim)}"
    return f"{_word(all(are_met))}: {what}, {bound} ({', '.join(map(form.format, values))})"


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
