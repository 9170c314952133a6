"""Compares Nightside's own rules with the paper's algorithm on every workload, and judges whether one is fit to be the
default."""

from __future__ import annotations

from loadgen.pages.markdown import NOTHING, table
from loadgen.studies import numbers as of
from loadgen.studies.experiments import Experiment
from loadgen.studies.numbers import mean_ratio, quotient, ratio, spread_times, times
from loadgen.studies.skywalker.judgement import SAME, Judgement, judgement
from loadgen.studies.skywalker.plan import (
    ALL_OF_THEM,
    FIRST_TOKEN,
    SKYWALKER,
    WORTH,
)
from loadgen.studies.skywalker.reader import SectionReader


def judged_rule(reader: SectionReader, name: str) -> str:
    found = judgement(reader, name)
    if not found.throughputs:
        return f"`{name}`: not played."
    return (
        f"`{name}`: throughput × {found.gain:.3f} over {_extent(found)} ({min(found.gains):.3f} to"
        f" {max(found.gains):.3f}), better on {found.better}, worse on {found.worse} of {len(found.gains)}; mean TTFT"
        f" {_wait(found)}; the worst of all seeds × {found.worst_seed:.3f} in throughput. As a default it is"
        f" {found.verdict('fit', 'not fit')}."
    )


def _extent(found: Judgement) -> str:
    return "all workloads" if found.is_whole else f"{len(found.gains)} of {found.asked} workloads"


def _wait(found: Judgement) -> str:
    """Mean ratio of the waits; a dash where a workload has none because a system answered no request there."""
    return f"× {mean_ratio(found.waits):.2f}" if len(found.waits) == len(found.gains) else NOTHING


def together(reader: SectionReader) -> str:
    """Sentence on whether all rules together gain more than `worth` alone."""
    alone, together = (judgement(reader, name, unseen=False) for name in (WORTH, ALL_OF_THEM))
    if not (alone.is_whole and together.is_whole):
        return f"`{ALL_OF_THEM}` and `{WORTH}` are not compared: not all of their workloads were played."
    more = quotient(together.gain, alone.gain)
    if more is None:
        return f"`{WORTH}` did nothing on one workload: there is nothing to hold `{ALL_OF_THEM}` against."
    return (
        f"`{ALL_OF_THEM}` has × {more:.3f} of the throughput of `{WORTH}`, which "
        + (f"within {SAME:.0%} is the same" if abs(more - 1) <= SAME else f"is more than {SAME:.0%} apart")
        + f". Of these two rules the policy `prefix` has `{WORTH}` by default, beside the in-band credit, and not"
        f" `{FIRST_TOKEN}`."
    )


def variants(reader: SectionReader, experiment: Experiment) -> str:
    names = [name for name in experiment.run_names if name != SKYWALKER]
    rows = []
    for point in experiment.points:
        base = reader.of(experiment, point.name, SKYWALKER)
        cells = []
        for name in names:
            runs = reader.of(experiment, point.name, name)
            cells += [spread_times(ratio(runs, base, of.THROUGHPUT), 3), times(ratio(runs, base, of.TTFT_MEAN))]
            cells.append(times(ratio(runs, base, of.TTFT_P90)))
        rows.append((point.name, *cells))
    head = [cell for name in names for cell in (f"`{name}`: throughput", "mean TTFT", "p90")]
    return table(("workload", *head), rows)
