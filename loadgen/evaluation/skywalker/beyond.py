"""Our own rules beside the paper's algorithm, on every workload, and whether one of them is fit to be the default."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.evaluation import numbers as of
from loadgen.evaluation.experiments import Experiment
from loadgen.evaluation.markdown import bullets, listed, spread_times, table, times
from loadgen.evaluation.numbers import Measure, Middle, mean_ratio, ratio
from loadgen.evaluation.skywalker.plan import ALL_OF_THEM, SKYWALKER, VARIANT_WORDS, WORTH
from loadgen.evaluation.skywalker.reader import Reader, Section

_SAME = 0.01
_MAY_LOSE = 0.01


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
            f"Fit to be a default is what loses no more than {_MAY_LOSE:.0%} on any workload, by the median of the"
            f" seeds, and wins more than {_SAME:.0%} on the whole; single seeds may lose more. {_together(reader)}\n",
            f"The 128 bytes of `{WORTH}` were found by trials on three of these workloads, seeing these figures: on"
            f" those it is fitted; the {len(experiment.points) - 3} others were not used for it, and test it.\n",
        ]
    )
    return Section(text)


def _judged(reader: Reader, name: str) -> str:
    gains, waits = _ratios(reader, name, of.THROUGHPUT), _ratios(reader, name, of.TTFT_MEAN)
    if not gains or not waits:
        return f"`{name}`: not played."
    wins, losses = sum(gain > 1 + _SAME for gain in gains), sum(gain < 1 - _SAME for gain in gains)
    fit = min(gains) >= 1 - _MAY_LOSE and mean_ratio(gains) > 1 + _SAME
    return (
        f"`{name}`: throughput × {mean_ratio(gains):.3f} over all workloads ({min(gains):.3f} to"
        f" {max(gains):.3f}), better on {wins}, worse on {losses} of {len(gains)}; mean TTFT ×"
        f" {mean_ratio(waits):.2f}; the worst of all seeds × {_worst_seed(reader, name):.3f} in throughput. As a"
        f" default it is {'fit' if fit else 'not fit'}."
    )


def _worst_seed(reader: Reader, name: str) -> float:
    return min(each.low for each in _middles(reader, name, of.THROUGHPUT))


def _together(reader: Reader) -> str:
    """Whether more than `worth` is worth having."""
    gains = {name: _ratios(reader, name, of.THROUGHPUT) for name in (WORTH, ALL_OF_THEM)}
    if not all(gains.values()):
        return ""
    more = mean_ratio(gains[ALL_OF_THEM]) / mean_ratio(gains[WORTH])
    return (
        f"`{ALL_OF_THEM}` has × {more:.3f} of the throughput of `{WORTH}` alone, which "
        + (f"within {_SAME:.0%} is the same" if abs(more - 1) <= _SAME else f"is more than {_SAME:.0%} apart")
        + f"; of the two, our default is `{WORTH}` alone."
    )


def _ratios(reader: Reader, name: str, measure: Measure) -> Sequence[float]:
    return [each.median for each in _middles(reader, name, measure)]


def _middles(reader: Reader, name: str, measure: Measure) -> list[Middle]:
    experiment = reader.plan.improvement
    found = [
        ratio(reader.of(experiment, point.name, name), reader.of(experiment, point.name, SKYWALKER), measure)
        for point in experiment.points
    ]
    return [each for each in found if each]


# What nothing was fitted to


def unseen(reader: Reader) -> Section:
    experiment = reader.plan.unseen
    seeds = listed(list(map(str, experiment.seeds)))
    text = "\n".join(
        [
            "## What nothing was fitted to\n",
            f"`{WORTH}` and our defaults on workloads and seeds ({seeds}) with which nothing was tried before: written"
            " down first, played then, and neither changed nor left out since. Ratios to the paper's algorithm, as"
            " above.\n",
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
