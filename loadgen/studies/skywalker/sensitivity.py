"""Sections on the sensitivity to each setting, and on the chosen defaults."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.pages.markdown import NOTHING, table
from loadgen.studies import numbers as of
from loadgen.studies.numbers import Measure, mean_ratio, quotient, ratio
from loadgen.studies.skywalker.judgement import SAME
from loadgen.studies.skywalker.plan import AXES, SKYWALKER, SettingAxis
from loadgen.studies.skywalker.reader import SectionReader


def defaults(reader: SectionReader) -> str:
    """Table of each setting's default, and whether these runs support it."""
    rows = [_default(reader, axis) for axis in AXES if axis.default is not None]
    return table(("setting", "default", "best throughput", "default's, of the best", "span of the axis",
                  "default's mean TTFT, of the least", "these runs"), rows)  # fmt: skip


def _default(reader: SectionReader, axis: SettingAxis) -> tuple[str, ...]:
    assert axis.default is not None
    name = f"{axis.name}, `{axis.key}`"
    scores, waits = _scores(reader, axis, of.THROUGHPUT), _scores(reader, axis, of.TTFT_MEAN)
    if axis.default not in scores or axis.default not in waits:
        return name, axis.default, *[NOTHING] * 4, NOTHING
    best = _best(scores, axis)
    share, span = quotient(scores[axis.default], scores[best]), max(scores.values()) - min(scores.values())
    wait = quotient(waits[axis.default], min(waits.values()))
    cells = best, _times(share, 3), f"{span:.1%}", _times(wait, 2)
    if len(scores) < len(axis.values) or share is None:
        return name, axis.default, *cells, f"not judged, with {len(scores)} of {len(axis.values)} values played"
    in_favour = "for it" if span > SAME else "do not tell"
    return name, axis.default, *cells, in_favour if share >= 1 - SAME else f"for {best}"


def _times(share: float | None, digits: int) -> str:
    return NOTHING if share is None else f"× {share:.{digits}f}"


def tried_workloads(reader: SectionReader, axis: SettingAxis) -> list[str]:
    return [point.name for point in reader.plan.sensitivity[axis.name, axis.base].points]


def choice(reader: SectionReader, axis: SettingAxis) -> str:
    """Sentence on the best value over all workloads, and on the default."""
    scores = _scores(reader, axis, of.THROUGHPUT)
    if not scores:
        return "Not played."
    best = _best(scores, axis)
    spread = max(scores.values()) - min(scores.values())
    said = (
        f"Best throughput over these workloads: {best} (× {scores[best]:.3f}); the whole axis spans {spread:.1%}."
        f" Paper: {axis.paper}."
    )
    if axis.default is not None and axis.default in scores:
        share = quotient(scores[axis.default], scores[best])
        said += f" Our default is {axis.default}" + ("." if share is None else f", {share - 1:+.1%} from the best.")
    return f"{said} {axis.chosen}".rstrip()


def _best(scores: Mapping[str, float], axis: SettingAxis) -> str:
    """Best value; the default, unless another is better in the third digit."""
    return max(scores, key=lambda value: (round(scores[value], 3), value == axis.default))


def _scores(reader: SectionReader, axis: SettingAxis, measure: Measure) -> dict[str, float]:
    """Ratio of each value to the base over all workloads; values that were not played on all of them are left out."""
    found = {value: _ratios(reader, axis, value, measure) for value, _, _ in axis.values}
    return {value: mean_ratio(ratios) for value, ratios in found.items() if ratios}


def _ratios(reader: SectionReader, axis: SettingAxis, value: str, measure: Measure) -> list[float]:
    found = [
        ratio(reader.axis(axis, value, workload, SKYWALKER), reader.axis(axis, axis.base, workload, SKYWALKER), measure)
        for workload in tried_workloads(reader, axis)
    ]
    return [each.median for each in found if each] if all(found) else []
