"""Plots of Fig. 8, and where SkyWalker is behind. Every sentence is derived from figures."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.pages.drawing import Boxes, rows
from loadgen.pages.markdown import bullets, listed
from loadgen.pages.templates import picture_file
from loadgen.studies.numbers import Measure, middle_box
from loadgen.studies.skywalker.plan import SKYWALKER
from loadgen.studies.skywalker.reader import SectionReader

_SAME = 0.01


def compared(reader: SectionReader, plots: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Title and plot of each workload; plots are added."""
    for place, workload in enumerate(reader.workloads()):
        name = f"skywalker-fig8-{place}.svg"
        plots[name] = _plot(reader, workload)
        yield workload, name


def _plot(reader: SectionReader, workload: str) -> str:
    systems = reader.plan.fig8.run_names
    panels = [
        Boxes(title, "s", [middle_box(reader.system(workload, system), kind) for system in systems])
        for title, kind in (("Time to first token", "ttft_ms"), ("End to end", "duration_ms"))
    ]
    return picture_file(rows(f"{workload}: first tokens and whole answers", systems, panels))


def where_behind(reader: SectionReader, measure: Measure, words: str, *, more_is_better: bool) -> str:
    """Sentence naming the systems that are better than SkyWalker."""
    rivals = [name for name in reader.plan.fig8.run_names if name != SKYWALKER]
    workloads = reader.workloads()
    behind = []
    for workload in workloads:
        found = {rival: reader.compared(workload, rival, SKYWALKER, measure) for rival in rivals}
        better = {
            rival: each.median
            for rival, each in found.items()
            if each and (each.median > 1 + _SAME if more_is_better else each.median < 1 - _SAME)
        }
        order = sorted(better, key=better.__getitem__, reverse=more_is_better)
        if better:
            behind.append(f"{workload}: {listed([f'{rival} (× {better[rival]:.2f})' for rival in order])}")
    text = (
        f"{words[0].upper()}{words[1:]}: on {len(workloads) - len(behind)} of {len(workloads)} workloads no rival is"
        f" more than {_SAME:.0%} better than SkyWalker.\n"
    )
    return text + (f"\nIt is behind on\n\n{bullets(behind)}" if behind else "")
