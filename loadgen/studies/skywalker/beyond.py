"""Compares Nightside's own rules with the paper's algorithm on every workload, and judges whether one is fit to be the
default."""

from __future__ import annotations

from loadgen.pages.markdown import NOTHING, bullets, listed, table
from loadgen.studies import numbers as of
from loadgen.studies.experiments import Experiment
from loadgen.studies.numbers import mean_ratio, quotient, ratio, spread_times, times
from loadgen.studies.skywalker.judgement import MAY_LOSE, SAME, Judgement, judgement
from loadgen.studies.skywalker.plan import (
    ALL_OF_THEM,
    CREDIT_ALONE,
    FIRST_TOKEN,
    SKYWALKER,
    VARIANT_WORDS,
    WORTH,
    worth_trials,
)
from loadgen.studies.skywalker.reader import Reader, Section


def beyond(reader: Reader) -> Section:
    experiment = reader.plan.improvement
    names = [name for name in experiment.run_names if name != SKYWALKER]
    text = "\n".join(
        [
            "## Beyond the paper\n",
            "Ratios to the paper's algorithm, with nothing changed but what is said:\n",
            bullets([f"`{name}`: {words}" for name, words in VARIANT_WORDS.items()]),
            _table(reader, experiment),
            bullets([_judged(reader, name) for name in names]),
            f"Fit to be a default is what loses no more than {MAY_LOSE:.0%} on any workload, by the median of the"
            f" seeds, and wins more than {SAME:.0%} on the whole; single seeds may lose more. What was also played on"
            " the workloads of [What nothing was fitted to](#what-nothing-was-fitted-to) is judged by those too."
            f" {_together(reader)}\n",
            f"The 128 bytes of `{WORTH}` come from {worth_trials('these workloads')}, seeing these figures: on those it"
            " is fitted. The others were not used for it, but since nobody can tell which they are, only what follows"
            " is known to test it.\n",
        ]
    )
    return Section(text)


def _judged(reader: Reader, name: str) -> str:
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


def _together(reader: Reader) -> str:
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


# Workloads to which no setting was fitted


def unseen(reader: Reader) -> Section:
    experiment = reader.plan.unseen
    seeds = listed(list(map(str, experiment.seeds)))
    text = "\n".join(
        [
            "## What nothing was fitted to\n",
            f"`{WORTH}`, `{CREDIT_ALONE}` and both on workloads and seeds ({seeds}) to which nothing was fitted:"
            " written down first, played then, and neither changed nor left out since. The first is also a scenario of"
            " our tests, where it is played with other seeds. Ratios to the paper's algorithm, as above.\n",
            _table(reader, experiment),
        ]
    )
    return Section(text)


def _table(reader: Reader, experiment: Experiment) -> str:
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
