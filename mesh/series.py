"""Counters, gauges and histograms that cost a dictionary look-up to update, and take Prometheus' form at a scrape. They
know nothing of what they count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a metric: its name, kind and labels."""

    name: str
    """Name as scraped and queried; for a histogram without `_bucket`, `_sum` and `_count`."""
    kind: str
    """`counter`, `gauge` or `histogram`."""
    labels: Labels
    words: str


EVERY_SERIES = ""
"""Stands for the name of every series that has a label."""


@dataclass(frozen=True, slots=True)
class Label:
    """Meaning of a label; `values` where they are a closed set."""

    meaning: str
    values: tuple[str, ...] = ()


def described(family: Metric) -> Described:
    """Description of a metric family that a collector gives, with or without series."""
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels: Labels = getattr(family, "_labelnames", ())
    return Described(name, family.type, labels, family.documentation)


class CounterSeries(Collector):
    """Counter with one number for each set of label values."""

    __slots__ = ("_counts", "_labels", "_name", "_words")

    def __init__(self, name: str, words: str, labels: Labels) -> None:
        self._name = name
        self._words = words
        self._labels = labels
        self._counts: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *values: str, amount: float = 1) -> None:
        count = self._counts.get(values)
        if count is None:
            assert len(values) == len(self._labels), f"{self._name}: a value for each label"
            count = 0
        self._counts[values] = count + amount

    def counts(self) -> Iterable[tuple[Labels, float]]:
        return self._counts.items()

    def describe(self) -> Iterable[Metric]:
        return (CounterMetricFamily(self._name, self._words, labels=self._labels),)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._words, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Level(Collector):
    """Gauge with one value for each set of label values: the one set last, or one that is read at each scrape."""

    __slots__ = ("_labels", "_name", "_values", "_words")

    def __init__(self, name: str, words: str, labels: Labels) -> None:
        self._name = name
        self._words = words
        self._labels = labels
        self._values: dict[Labels, Callable[[], float]] = {} if labels else {(): float}

    def set(self, value: float, *labels: str) -> None:
        self.follow(lambda: value, *labels)

    def follow(self, read: Callable[[], float], *labels: str) -> None:
        assert len(labels) == len(self._labels), f"{self._name}: a value for each label"
        self._values[labels] = read

    def describe(self) -> Iterable[Metric]:
        return (GaugeMetricFamily(self._name, self._words, labels=self._labels),)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._words, labels=self._labels)
        for labels, read in self._values.items():
            family.add_metric(labels, read())
        yield family


class _Observed:
    """Series of a histogram."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


class Distribution(Collector):
    """Histogram over fixed buckets: how many values were at most each bound, and their sum."""

    __slots__ = ("_bounds", "_labels", "_name", "_nothing", "_series", "_words")

    def __init__(self, name: str, words: str, bounds: tuple[float, ...], labels: Labels) -> None:
        self._name = name
        self._words = words
        self._labels = labels
        self._bounds = bounds
        self._nothing = (0,) * (len(bounds) + 1)
        self._series: dict[Labels, _Observed] = {} if labels else {(): _Observed(len(bounds))}

    def observe(self, value: float, *values: str) -> None:
        observed = self._series.get(values)
        if observed is None:
            assert len(values) == len(self._labels), f"{self._name}: a value for each label"
            observed = self._series[values] = _Observed(len(self._bounds))
        observed.counts[bisect_left(self._bounds, value)] += 1
        observed.total += value

    def summed(self) -> tuple[int, ...]:
        """Counts by bucket over all series, not cumulative; the last bucket has no bound."""
        return tuple(map(sum, zip(*(each.counts for each in self._series.values()), strict=True))) or self._nothing

    def describe(self) -> Iterable[Metric]:
        return (HistogramMetricFamily(self._name, self._words, labels=self._labels),)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._words, labels=self._labels)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for values, observed in self._series.items():
            running = 0
            buckets: list[tuple[str, float]] = []
            for name, count in zip(names, observed.counts, strict=True):
                running += count
                buckets.append((name, running))
            family.add_metric(values, buckets, observed.total)
        yield family
