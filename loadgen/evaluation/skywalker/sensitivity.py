"""How much hangs on each setting, and what we chose for it."""

from __future__ import annotations

from statistics import geometric_mean

from loadgen.evaluation import numbers as of
from loadgen.evaluation.markdown import table, times
from loadgen.evaluation.numbers import ratio
from loadgen.evaluation.skywalker.plan import AXES, SKYWALKER, Axis
from loadgen.evaluation.skywalker.reader import Reader, Section


def sensitivity(reader: Reader) -> Section:
    parts = [
        "## Sensitivity\n",
        "Each setting alone, the rest as in the paper: throughput and mean TTFT as ratios to the base.\n",
    ]
    for axis in AXES:
        parts += [f"### {axis.name[0].upper()}{axis.name[1:]}\n", _table(reader, axis), _choice(reader, axis)]
    return Section("\n".join(parts))


def _workloads(reader: Reader, axis: Axis) -> list[str]:
    return [point.name for point in reader.plan.sensitivity[axis.name, axis.base].points]


def _table(reader: Reader, axis: Axis) -> str:
    workloads = _workloads(reader, axis)
    rows = []
    for value, _, _ in axis.values:
        cells = []
        for workload in workloads:
            runs = reader.axis(axis, value, workload, SKYWALKER)
            base = reader.axis(axis, axis.base, workload, SKYWALKER)
            cells += [times(ratio(runs, base, of.THROUGHPUT), 3), times(ratio(runs, base, of.TTFT_MEAN))]
        rows.append((f"{value} (base)" if value == axis.base else value, *cells))
    head = [cell for workload in workloads for cell in (f"{workload}: throughput", "mean TTFT")]
    return table((axis.name, *head), rows)


def _choice(reader: Reader, axis: Axis) -> str:
    """The best over all workloads, and what we keep."""
    scores = {value: _score(reader, axis, value) for value, _, _ in axis.values}
    best = max(scores, key=scores.__getitem__)
    spread = max(scores.values()) - min(scores.values())
    said = (
        f"Best throughput over these workloads: {best} (× {scores[best]:.3f}); the whole axis spans {spread:.1%}."
        f" Paper: {axis.paper}."
    )
    if axis.default is not None:
        said += f" Our default is {axis.default}, {scores[axis.default] / scores[best] - 1:+.1%} from the best."
    return f"{said} {axis.chosen}".rstrip() + "\n"


def _score(reader: Reader, axis: Axis, value: str) -> float:
    found = [
        ratio(
            reader.axis(axis, value, workload, SKYWALKER),
            reader.axis(axis, axis.base, workload, SKYWALKER),
            of.THROUGHPUT,
        )
        for workload in _workloads(reader, axis)
    ]
    return geometric_mean([each.median for each in found if each])
