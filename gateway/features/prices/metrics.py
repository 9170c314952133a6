"""Metrics of the prices in force, and of the estimated additions of placements to the bill. It takes no part in
decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.features.prices.in_force import MONEY
from gateway.core.features.prices.price_table import MICROS, Prices
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import RequestProfile
from gateway.request.legs import RequestSummary
from mesh.series import CounterSeries

NO_SOURCE, FILE, CONTROLLER = "none", "file", "controller"
SOURCES = (NO_SOURCE, FILE, CONTROLLER)
"""Sources of the prices in force."""


class PricesState(Protocol):
    """State of the prices, as the metrics read it."""

    @property
    def fault(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def in_force(self) -> Prices | None: ...
    @property
    def age_s(self) -> float | None: ...
    @property
    def valid_s(self) -> float | None: ...


class PriceLevels(Collector):
    """Collector of the prices in force, read at each scrape. Without prices the series appear, and only
    `prices_refused` has a value."""

    def __init__(self, prices: PricesState | None) -> None:
        self._prices = prices

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        hour = GaugeMetricFamily(
            "nightside_price_replica_hour",
            "Current price of a replica-hour, in units of the currency; an empty pool stands for all pools "
            "that the price list does not name.",
            labels=("region", "pool", "currency"),
        )
        age = GaugeMetricFamily(
            "nightside_prices_age_seconds", "Time since the price list in force was applied.", labels=("source",)
        )
        valid = GaugeMetricFamily(
            "nightside_prices_valid_seconds",
            "Time until `valid_until` of the price list; negative after it, when prices should be reviewed.",
            labels=(),
        )
        faulty = GaugeMetricFamily(
            "nightside_prices_refused", "1 while the newest price list cannot be read.", labels=()
        )
        prices = self._prices
        if prices is not None:
            faulty.add_metric((), bool(prices.fault))
            if prices.age_s is not None:
                age.add_metric((prices.source,), prices.age_s)
            if prices.valid_s is not None:
                valid.add_metric((), prices.valid_s)
            if prices.in_force is not None:
                currency = prices.in_force.currency
                for each in prices.in_force.replicas:
                    hour.add_metric((each.region, each.pool, currency), each.hour_micros / MICROS)
        yield from (hour, age, valid, faulty)


class MoneyTally:
    """Sum of the costs that were estimated when requests were placed: a consumer of finished requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._money = CounterSeries(
            "nightside_placement_money",
            "Estimated cost added by placements, in units of the currency, by destination region; counted "
            "only with prices in force and `placement.considered_max` above 0.",
            ("region", "currency"),
        )
        registry.register(self._money)

    def on_finished(
        self, _profile: RequestProfile, _end: EndRequest, _summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        if record is None:
            return
        for leg in record.legs:
            considered = leg.decision.considered
            costs = considered[0].costs if considered else None
            for each in () if costs is None else costs.further:
                if each.name == MONEY and each.amount is not None:
                    self._money.add(leg.place.region, each.unit, amount=each.amount / each.per_unit)
