"""Plot of Fig. 9: blind, outstanding and pending-request pushing, on four selections."""

from __future__ import annotations

from loadgen.pages.drawing import Bars, rows
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import median_of
from loadgen.studies.skywalker.plan import PUSHING, SELECTIONS
from loadgen.studies.skywalker.reader import SectionReader

CASES = [(selection, name) for selection, _ in SELECTIONS for name, _ in PUSHING]


def pushing_plot(reader: SectionReader) -> str:
    throughput, waits_s = (
        [median_of(reader.pushing(*case), measure) for case in CASES] for measure in (of.THROUGHPUT, of.TTFT_P90)
    )
    panels = (Bars("Requests a second", throughput), Bars("P90 of TTFT, s", waits_s, is_log=True))
    return picture_file(rows("Pushing: throughput and first tokens", [", ".join(case) for case in CASES], panels))
