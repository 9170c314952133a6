"""Invariant of placement by price: a request waits beside an available replica only to save money."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.features.prices.price_table import PriceTable
from gateway.core.kernel.feature_checker import FeatureChecker
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import RequestState


class PricesChecker(FeatureChecker):
    """Excuses a patient request that waits beside replicas paid by use or without a known price, and no other."""

    def __init__(self, table: Callable[[], PriceTable | None]) -> None:
        self._table = table

    def may_serve(self, state: ReplicaState, request: RequestState, /) -> bool:
        table = self._table()
        if table is None or not request.request_class.is_patient:
            return True
        price = table.of(state.spec.place.region, state.spec.pool)
        return price is not None and not price.is_per_use
