"""Derives request lengths from gateways' histograms of prompt tokens and total tokens.

A histogram has buckets and a sum, and two of them share no information on pairs; the assumptions between them are
listed. Text in, lengths out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from loadgen.planner.lengths import RequestShape, WeightedShapes, lengths_of

PROMPTS = "nightside_request_prompt_tokens"
TOTALS = "nightside_request_total_tokens"
_DRAWS = 2_000
_ROUNDS = 20
_BEND_MAX = 8.0


class HistogramError(ValueError):
    """The pages hold no counts of the requested model."""


@dataclass(frozen=True, slots=True)
class CountedLengths:
    model: str
    lengths: WeightedShapes
    requests: int
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Histogram:
    """Histogram of several gateways together."""

    up_to: dict[float, float] = field(default_factory=dict)
    """Requests by bucket, each cumulative up to its bound."""
    total: float = 0.0

    @property
    def count(self) -> float:
        return max(self.up_to.values(), default=0.0)


def lengths_from_pages(pages: Sequence[str], model: str | None = None) -> CountedLengths:
    """Lengths from gateways' metrics pages. Raises HistogramError."""
    found: dict[tuple[str, str], _Histogram] = {}
    for page in pages:
        _take(page, found)
    models = sorted({name for family, name in found if family == TOTALS and found[family, name].count})
    if not models:
        raise HistogramError(f"no request is counted in {TOTALS}: a gateway counts those that completed")
    if model is None and len(models) > 1:
        raise HistogramError(f"several models are counted, name one with --model: {', '.join(models)}")
    chosen = model or models[0]
    if chosen not in models:
        raise HistogramError(f"no request of {chosen} is counted; there are: {', '.join(models)}")
    totals, prompts = found[TOTALS, chosen], found.get((PROMPTS, chosen))
    if prompts is None or not prompts.count:
        raise HistogramError(f"{PROMPTS} does not count {chosen}")
    return CountedLengths(chosen, _joined(prompts, totals), round(totals.count), _NOTES)


_NOTES = (
    "within a bucket lengths are bent so that their mean is the one that was counted",
    "the longer a request, the longer its prompt is taken to be: two histograms do not say which go together",
    "prompts are read whole: what a prefix cache would save is not counted",
)


def _take(page: str, found: dict[tuple[str, str], _Histogram]) -> None:
    try:
        families = [each for each in text_string_to_metric_families(page) if each.name in (PROMPTS, TOTALS)]
    except ValueError as error:
        raise HistogramError(f"this is no metrics page: {error}") from error
    for family in families:
        for sample in family.samples:
            histogram = found.setdefault((family.name, sample.labels.get("model", "")), _Histogram())
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                histogram.up_to[bound] = histogram.up_to.get(bound, 0.0) + sample.value
            elif sample.name.endswith("_sum"):
                histogram.total += sample.value


def _joined(prompts: _Histogram, totals: _Histogram) -> WeightedShapes:
    pairs = zip(_quantiles(totals, _DRAWS), _quantiles(prompts, _DRAWS), strict=True)
    return lengths_of((_shape(round(total), round(prompt)), 1.0) for total, prompt in pairs)


def _shape(total: int, prompt: int) -> RequestShape:
    prompt = max(1, min(prompt, total - 1))
    return RequestShape(prompt, max(1, total - prompt))


def _quantiles(histogram: _Histogram, draws: int) -> list[float]:
    """Values at evenly spaced ranks of the histogram."""
    buckets = _buckets(histogram)
    mean = histogram.total / histogram.count
    low, high = 1 / _BEND_MAX, _BEND_MAX
    values: list[float] = []
    for _ in range(_ROUNDS):
        bend = (low * high) ** 0.5
        values = _spread(buckets, histogram.count, draws, bend)
        low, high = (low, bend) if sum(values) / draws < mean else (bend, high)
    return values


def _buckets(histogram: _Histogram) -> list[tuple[float, float, float]]:
    """Buckets that hold requests: from, to, and the cumulative count. Requests beyond the last bound are assumed to lie
    between it and its double."""
    found, low, before = [], 0.0, 0.0
    for bound, count in sorted(histogram.up_to.items()):
        high = bound if bound != float("inf") else 2 * low
        if count > before:
            found.append((low, high, count))
        low, before = high, max(count, before)
    return found


def _spread(buckets: list[tuple[float, float, float]], count: float, draws: int, bend: float) -> list[float]:
    """Values at even ranks for a given bend; a larger bend makes values smaller within their buckets."""
    values, place, before = [], 0, 0.0
    for number in range(draws):
        wanted = (number + 0.5) / draws * count
        while wanted > buckets[place][2] and place < len(buckets) - 1:
            before = buckets[place][2]
            place += 1
        low, high, up_to = buckets[place]
        part = min(1.0, max(0.0, (wanted - before) / (up_to - before)))
        values.append(max(1.0, low + (high - low) * part**bend))
    return values
