"""Metrics of KV events. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.kv_events.engine_cache import TieResult
from gateway.core.features.kv_events.events import UnheardReason
from gateway.core.features.kv_events.feature import KvEvents
from gateway.core.vocabulary import ReplicaId
from gateway.features.kv_events.subscriber import KvEventsSubscriber


class KvEventLevels(Collector):
    """Collector that reads the core and the subscribers at each scrape."""

    def __init__(self, kv_events: KvEvents, subscribers: Callable[[], Mapping[ReplicaId, KvEventsSubscriber]]) -> None:
        self._kv_events = kv_events
        self._subscribers = subscribers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._of_subscribers()
        yield from self._of_caches()
        answers = CounterMetricFamily(
            "nightside_kv_events_answers",
            "Answers of engines that tell of their KV caches, by whether blocks could be tied to the prompt.",
            labels=["result"],
        )
        unheard = CounterMetricFamily(
            "nightside_kv_events_unheard",
            "Times that an engine's word about its KV cache ceased to count, so that the gateway's estimate does.",
            labels=["reason"],
        )
        for result in TieResult:
            answers.add_metric([result], self._kv_events.results[result])
        for reason in UnheardReason:
            unheard.add_metric([reason], self._kv_events.unheard[reason])
        yield answers
        yield unheard
        yield CounterMetricFamily(
            "nightside_kv_events_shortened",
            "Times that an engine said it had removed a part of a prompt from its KV cache.",
            value=self._kv_events.shortened,
        )

    def _of_subscribers(self) -> Iterator[Metric]:
        followed = GaugeMetricFamily(
            "nightside_kv_events_followed", "1 while an engine's KV events are followed, else 0.", labels=["replica"]
        )
        received = CounterMetricFamily(
            "nightside_kv_events_received_bytes", "Bytes of KV events that an engine sent.", labels=["replica"]
        )
        repeated = CounterMetricFamily(
            "nightside_kv_events_repeated", "Messages of KV events that an engine repeated.", labels=["replica"]
        )
        for replica, subscriber in self._subscribers().items():
            followed.add_metric([replica], subscriber.is_connected)
            received.add_metric([replica], subscriber.bytes)
            repeated.add_metric([replica], subscriber.repeated)
        yield followed
        yield received
        yield repeated

    def _of_caches(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "nightside_kv_events_blocks",
            "KV cache blocks that an engine says it holds, by whether they are tied to a prompt.",
            labels=["replica", "tie"],
        )
        for replica, cache in self._kv_events.caches():
            blocks.add_metric([replica, "tied"], cache.tied)
            blocks.add_metric([replica, "untied"], len(cache) - cache.tied)
        yield blocks
