"""Series of replicas that leave."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LegResult, RequestProfile, TargetKind
from gateway.request.legs import RequestSummary
from mesh.series import CounterSeries


class LeavingSeries:
    """Counter of moved attempts, a consumer of finished requests, and a gauge of replicas that are overdue."""

    def __init__(self, registry: CollectorRegistry, overdue: Callable[[], int] = lambda: 0) -> None:
        self._moved = CounterSeries(
            "nightside_moved_attempts",
            "Attempts at replicas that were announced to leave which were ended early, by class of the request.",
            ("service_class",),
        )
        registry.register(self._moved)
        gauge = Gauge(
            "nightside_replicas_overdue",
            "Replicas that answer after the time by which they were announced to leave.",
            registry=registry,
        )
        gauge.set_function(overdue)

    def on_finished(
        self, profile: RequestProfile, _end: EndRequest, _summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Count the legs of a finished request that were moved."""
        legs = () if record is None else record.legs
        moved = sum(
            leg.target.kind is TargetKind.REPLICA and leg.result is LegResult.TAKEN_BACK and leg.gave_way_ns is None
            for leg in legs
        )
        if moved:
            self._moved.add(profile.service_class, amount=moved)
