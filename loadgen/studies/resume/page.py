"""Page of what clients see of engines that die. Every figure is measured elsewhere; no broken stream is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from loadgen.pages.markdown import NOTHING
from loadgen.studies.numbers import Middle
from loadgen.studies.rendering import render
from loadgen.studies.resume import playing
from loadgen.studies.resume.costs import ResumeCost
from loadgen.studies.resume.playing import ResumeOutcome
from loadgen.studies.resume.real_engines import EngineFigures

_P50, _P99 = 49, 98


def page_of(
    outcomes: Sequence[ResumeOutcome],
    costs: tuple[Mapping[str, Middle], Sequence[ResumeCost]],
    measured: EngineFigures,
    machine: Mapping[str, object],
) -> str:
    added, whole = costs
    chunk_us = next((each.chunk_us.median for each in whole if each.setting == "off"), None)
    return render("resume/page.j2", outcomes=outcomes, added=added, costs=whole, measured=measured, machine=machine,
                  playing=playing, chunk_us=chunk_us, two=_two)  # fmt: skip


def _two(values: Sequence[float]) -> str:
    """Cells of the median and of the 99th percentile."""
    if len(values) < 2:
        return f"{NOTHING} | {NOTHING}"
    cuts = quantiles(values, n=100, method="inclusive")
    return f"{1000 * cuts[_P50]:.0f} ms | {1000 * cuts[_P99]:.0f} ms"
