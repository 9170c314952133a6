"""Time series of the last hour, for the charts of the page: a few rates for each region, sampled from counters that
exist anyway. A request costs nothing for them.

The object is pure: it is handed the time and the counters, and keeps a bounded number of bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import isnan, nan

import msgspec

from mesh.totals import FIRST_TOKEN_BOUNDS_S, Totals

INTERVAL_NS = 15_000_000_000
SAMPLES_MAX = 240
"""Samples kept: one hour of them."""
REGIONS_MAX = 64
"""Most regions that are followed; further ones have no series."""
GATEWAYS_MAX = 1024
"""Most gateways whose counters are compared with those of the sample before."""
SERIES = ("requests", "first_token_p50", "first_token_p99", "waiting", "forwards", "errors")
"""Names of a region's series: requests, forwards and errors a second, two quantiles in seconds, and requests in
queues."""
BYTES_MAX = REGIONS_MAX * len(SERIES) * SAMPLES_MAX * 4 + SAMPLES_MAX * 8
"""Most bytes of samples: 0.37 MB, of a gateway, which has one region, 8 kB."""

_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000

ByRegion = Mapping[str, Mapping[str, Totals]]
"""Counters by region and gateway."""


class LastHour:
    """Samples of the last hour. Series of a region that comes later have no values for the time before."""

    def __init__(self) -> None:
        self._ends = array("q")
        """Times of the samples in nanoseconds, oldest first."""
        self._regions: dict[str, list[array[float]]] = {}
        self._before: dict[str, Totals] = {}
        self._looked_ns: int | None = None
        self._shown: msgspec.Raw | None = None

    def is_due(self, now_ns: int) -> bool:
        """True if the next sample is due."""
        return self._looked_ns is None or now_ns - self._looked_ns >= INTERVAL_NS

    def look(self, counted: ByRegion, now_ns: int) -> None:
        """Take a sample. The first one only begins: rates need two."""
        before, began_ns = self._before, self._looked_ns
        gateways = [pair for each in counted.values() for pair in each.items()]
        self._before, self._looked_ns = dict(gateways[:GATEWAYS_MAX]), now_ns
        if began_ns is None or now_ns <= began_ns:
            return
        over_s = (now_ns - began_ns) / _SECOND_NS
        samples = {region: _sample(each, before, over_s) for region, each in counted.items()}
        self._append(samples, now_ns)

    def shown(self, began_ms: int) -> msgspec.Raw:
        """Section of the page as JSON, encoded once for each sample. `began_ms` is the wall-clock time of the monotonic
        clock's zero, in ms."""
        if self._shown is None:
            document = {
                "times_ms": [began_ms + end_ns // _MILLISECOND_NS for end_ns in self._ends],
                "regions": {
                    region: dict(zip(SERIES, map(_rounded, series), strict=True))
                    for region, series in self._regions.items()
                },
            }
            self._shown = msgspec.Raw(msgspec.json.encode(document))
        return self._shown

    @property
    def size_bytes(self) -> int:
        """Bytes of all samples."""
        series = [each for region in self._regions.values() for each in region]
        return self._ends.itemsize * len(self._ends) + sum(each.itemsize * len(each) for each in series)

    def _append(self, samples: Mapping[str, tuple[float, ...]], now_ns: int) -> None:
        self._shown = None
        self._ends.append(now_ns)
        for region in samples:
            if region not in self._regions and len(self._regions) < REGIONS_MAX:
                self._regions[region] = [array("f", [nan] * (len(self._ends) - 1)) for _ in SERIES]
        nothing = (nan,) * len(SERIES)
        for region, all_series in self._regions.items():
            for series, value in zip(all_series, samples.get(region, nothing), strict=True):
                series.append(value)
        if len(self._ends) > SAMPLES_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self._ends[0]
        for all_series in self._regions.values():
            for series in all_series:
                del series[0]
        empty = [region for region, all_series in self._regions.items() if all(isnan(each) for each in all_series[0])]
        for region in empty:
            del self._regions[region]


def _sample(counted: Mapping[str, Totals], before: Mapping[str, Totals], over_s: float) -> tuple[float, ...]:
    """Values of one region in the order of SERIES."""
    grown = [_grown(each, before[name]) for name, each in counted.items() if name in before]
    waiting = float(sum(each.waiting for each in counted.values()))
    if not grown:
        return (nan, nan, nan, waiting, nan, nan)
    buckets = _summed(each.first_tokens for each in grown)
    requests, forwards, errors = (
        sum(getattr(each, name) for each in grown) / over_s for name in ("requests", "forwards", "errors")
    )
    return (requests, quantile_s(buckets, 0.5), quantile_s(buckets, 0.99), waiting, forwards, errors)


def _grown(now: Totals, before: Totals) -> Totals:
    """Growth of the counts. A process that has started anew since counts from zero."""
    if now.requests < before.requests or now.forwards < before.forwards or now.errors < before.errors:
        return now
    streams = tuple(max(0, new - old) for new, old in zip(now.first_tokens, before.first_tokens, strict=False))
    return Totals(
        now.requests - before.requests, now.errors - before.errors, now.forwards - before.forwards, streams, now.waiting
    )


def _summed(buckets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Sum of the buckets of several gateways. Buckets of another number, from a gateway of another version, are left
    out, since their bounds are unknown."""
    known = [each for each in buckets if len(each) == len(FIRST_TOKEN_BOUNDS_S) + 1]
    return tuple(map(sum, zip(*known, strict=True)))


def quantile_s(buckets: tuple[int, ...], share: float) -> float:
    """Quantile in seconds of times counted in the buckets of FIRST_TOKEN_BOUNDS_S, interpolated within a bucket as
    Prometheus does; NaN of no times. The last bucket counts as its lower bound."""
    sums = list(accumulate(buckets))
    if not sums or not sums[-1]:
        return nan
    wanted = share * sums[-1]
    index = bisect_left(sums, wanted)
    if index >= len(FIRST_TOKEN_BOUNDS_S):
        return float(FIRST_TOKEN_BOUNDS_S[-1])
    low = FIRST_TOKEN_BOUNDS_S[index - 1] if index else 0.0
    below = sums[index - 1] if index else 0
    return low + (FIRST_TOKEN_BOUNDS_S[index] - low) * (wanted - below) / buckets[index]


def _rounded(series: array[float]) -> list[float | None]:
    return [None if isnan(each) else round(each, 4) for each in series]
