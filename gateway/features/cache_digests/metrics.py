"""Metrics of cache digests. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.cache_digests.feature import CacheDigests

_SECOND_NS = 1_000_000_000


class DigestLevels(Collector):
    """Collector that reads the core at each scrape."""

    def __init__(self, digests: CacheDigests, now_ns: Callable[[], int]) -> None:
        self._digests = digests
        self._now_ns = now_ns

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "nightside_cache_digest_held",
            "Fingerprints of prefix blocks in the caches of this gateway's replicas, as peers are told.",
            value=self._digests.held(),
        )
        yield CounterMetricFamily(
            "nightside_cache_digest_sent_bytes",
            "Bytes of this gateway's cache digest that were sent to peers.",
            value=self._digests.told_bytes,
        )
        told = GaugeMetricFamily(
            "nightside_cache_digest_told", "Fingerprints that a peer says its replicas hold.", labels=["peer"]
        )
        age = GaugeMetricFamily(
            "nightside_cache_digest_age_seconds", "Time since a peer last told of its caches.", labels=["peer"]
        )
        refused = CounterMetricFamily(
            "nightside_cache_digest_refused",
            "Fingerprints told by a peer that were not kept: no room was left, or a part before them was missing.",
            labels=["peer"],
        )
        now_ns = self._now_ns()
        for peer, digest in self._digests.told():
            told.add_metric([peer], len(digest))
            age.add_metric([peer], (now_ns - digest.heard_ns) / _SECOND_NS)
            refused.add_metric([peer], digest.refused)
        yield told
        yield age
        yield refused
