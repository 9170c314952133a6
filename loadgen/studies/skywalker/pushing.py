"""Section of Fig. 9: blind, outstanding and pending-request pushing, on four selections, with the in-band credit on and
off."""

from __future__ import annotations

from loadgen.pages.drawing import Bars, rows
from loadgen.pages.markdown import table
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import measured, median_of, number, percent, ratio, seconds_of, spread_times
from loadgen.studies.skywalker.plan import PENDING, PUSHING, SELECTIONS, WITH_CREDIT
from loadgen.studies.skywalker.reader import SectionReader

_HEAD = ("selection, pushing", "requests/s", "SP-P over it", "TTFT p90, s", "it over SP-P", "whole p50, s", "hits",
         "busiest / mean")  # fmt: skip
_CASES = [(selection, name) for selection, _ in SELECTIONS for name, _ in PUSHING]


def pushing_plot(reader: SectionReader) -> str:
    throughput, waits_s = (
        [median_of(reader.pushing(*case), measure) for case in _CASES] for measure in (of.THROUGHPUT, of.TTFT_P90)
    )
    panels = (Bars("Requests a second", throughput), Bars("P90 of TTFT, s", waits_s, is_log=True))
    return picture_file(rows("Pushing: throughput and first tokens", [", ".join(case) for case in _CASES], panels))


def pushing(reader: SectionReader) -> str:
    return table(_HEAD, [_row(reader, selection, name) for selection, name in _CASES])


def _row(reader: SectionReader, selection: str, name: str) -> tuple[str, ...]:
    runs, pending = reader.pushing(selection, name), reader.pushing(selection, PENDING)
    return (
        f"{selection}, {name}",
        number(measured(runs, of.THROUGHPUT)),
        spread_times(ratio(pending, runs, of.THROUGHPUT)),
        seconds_of(measured(runs, of.TTFT_P90)),
        spread_times(ratio(runs, pending, of.TTFT_P90), 1),
        seconds_of(measured(runs, of.ANSWER_P50)),
        percent(measured(runs, of.HITS)),
        number(measured(runs, of.BUSIEST)),
    )


def credit(reader: SectionReader) -> list[str]:
    """The in-band credit, on against off."""
    said = []
    for selection, _ in SELECTIONS:
        with_credit, without = reader.pushing(selection, WITH_CREDIT), reader.pushing(selection, PENDING)
        throughput = spread_times(ratio(with_credit, without, of.THROUGHPUT))
        waits = spread_times(ratio(with_credit, without, of.TTFT_P90))
        said.append(f"{selection}: throughput {throughput}, P90 of TTFT {waits}")
    return said
