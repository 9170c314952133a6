"""Our own rules beside the paper's algorithm, on every workload, and whether one of them is fit to be the default."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from loadgen.evaluation import numbers as of
from loadgen.evaluation.markdown import bullets, spread_times, table, times
from loadgen.evaluation.numbers import Measure, ratio
from loadgen.evaluation.skywalker.plan import SKYWALKER, VARIANT_WORDS, WORTH
from loadgen.evaluation.skywalker.reader import Reader, Section

_SAME = 0.01
_MAY_LOSE = 0.01


def beyond(reader: Reader) -> Section:
    experiment = reader.plan.improvement
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
    text = "\n".join(
        [
            "## Beyond the paper\n",
            "Over the paper's algorithm, each by itself:\n",
            bullets([f"`{name}`: {words}" for name, words in VARIANT_WORDS.items()]),
            table(("workload", *head), rows),
            bullets([_judged(reader, name) for name in names]),
            f"The 128 bytes of `{WORTH}` were found by trials on three of these workloads, seeing these figures: on"
            " those it is fitted, and only the others test it.\n",
        ]
    )
    return Section(text)


def _judged(reader: Reader, name: str) -> str:
    gains, waits = _ratios(reader, name, of.THROUGHPUT), _ratios(reader, name, of.TTFT_MEAN)
    if not gains or not waits:
        return f"`{name}`: not played."
    wins, losses = sum(gain > 1 + _SAME for gain in gains), sum(gain < 1 - _SAME for gain in gains)
    fit = min(gains) >= 1 - _MAY_LOSE and geometric_mean(gains) > 1 + _SAME
    return (
        f"`{name}`: throughput × {geometric_mean(gains):.3f} over all workloads ({min(gains):.3f} to"
        f" {max(gains):.3f}), better on {wins}, worse on {losses} of {len(gains)}; mean TTFT ×"
        f" {geometric_mean(waits):.2f}. To be the default, it may lose no more than {_MAY_LOSE:.0%} anywhere and has to"
        f" win more than {_SAME:.0%} on the whole: it is {'fit' if fit else 'not fit'}."
    )


def _ratios(reader: Reader, name: str, measure: Measure) -> Sequence[float]:
    experiment = reader.plan.improvement
    found = [
        ratio(reader.of(experiment, point.name, name), reader.of(experiment, point.name, SKYWALKER), measure)
        for point in experiment.points
    ]
    return [each.median for each in found if each]
