"""Tracing of one gateway: it begins each request's trace, samples each finished request, and queues those that are
kept. No part of it waits for a collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import RequestProfile
from gateway.records.finished import ServesModel, names_served_model
from gateway.records.trace_metrics import NOT_KEPT, TraceMetrics
from gateway.request.legs import OutboundRequest, RequestSummary
from gateway.request.trace_context import RequestTrace
from gateway.tracing.sampling import HeadSampler, KeptBecause, TailSampler
from gateway.tracing.spans import FinishedRequest, ServerOf
from mesh.clock import Clock
from mesh.export_queue import ExportQueue
from mesh.faults import ConfigError
from mesh.values import SECOND_NS


class Tracing:
    """Tracing of a gateway whose region file names a collector."""

    def __init__(
        self,
        config: GatewayConfig,
        core: GatewayState,
        metrics: TraceMetrics,
        *,
        serves: ServesModel,
        server_of: ServerOf,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """Raises ConfigError where a needed package is not installed, or a file cannot be used."""
        try:
            from gateway.tracing.exporter import OtlpExporter  # noqa: PLC0415 - comes with the extra `otel`
        except ImportError as error:
            raise ConfigError(f"tracing: {error}: install nightside[otel]") from error
        settings = config.tracing
        self._exporter = OtlpExporter(settings, config.collector_headers, config.gateway_id, config.place, server_of)
        self._head = HeadSampler(settings)
        self._tail = TailSampler(settings.tail)
        self._outbox: ExportQueue[FinishedRequest] = ExportQueue(
            self._export,
            queue_max=settings.queue_max,
            batch_max=settings.batch_max,
            interval_s=settings.interval_ns / SECOND_NS,
            name="nightside-traces",
        )
        self._core = core
        self._metrics = metrics
        self._serves = serves
        self._clock = clock
        self._log = log
        self._wait_s = settings.shutdown_wait_ns / SECOND_NS
        self._endpoint = settings.endpoint
        self._is_failing = False
        self._is_over = False
        metrics.follow(self._outbox)

    def begin(self, outbound: OutboundRequest) -> RequestTrace:
        return self._head.begin(outbound)

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Sample a finished request."""
        trace = summary.trace
        if trace is None:
            return
        now_ns = self._clock.now_ns()
        kept = KeptBecause.HEAD if trace.own.is_sampled else self._tail.why_kept(end, summary, record, now_ns)
        self._metrics.requests.add(NOT_KEPT if kept is None else str(kept))
        if kept is None:
            return
        self._outbox.put(
            FinishedRequest(
                replace(profile, prefix=b""),  # may be long, and is in no span
                end,
                summary,
                record,
                trace,
                kept,
                ended_ns=now_ns,
                wall_offset_ns=self._clock.wall_ns() - now_ns,
                logging=self._core.policy.logging,
                is_model_known=names_served_model(profile, record, self._serves),
            )
        )

    def start(self) -> None:
        self._outbox.start()

    async def close(self) -> None:
        """Export what is left for a while; the rest is lost."""
        await asyncio.to_thread(self._close)

    def describe(self) -> Mapping[str, object]:
        return {
            "endpoint": self._endpoint,
            "waiting": len(self._outbox),
            "exported": self._outbox.exported,
            "refused": self._outbox.refused,
            "overflowed": self._outbox.overflowed,
            "problem": self._exporter.problem if self._is_failing else "",
        }

    def _close(self) -> None:
        lost = self._outbox.close(self._wait_s)
        self._is_over = True
        self._exporter.close()  # exports broken off by this are no failure of the collector
        if lost:
            self._log.warning("traces_lost_at_exit", requests=lost)

    def _export(self, requests: list[FinishedRequest]) -> bool:
        """Export a batch, in the outbox's thread."""
        is_taken = self._exporter.export(requests)
        if is_taken is self._is_failing and not self._is_over:
            self._is_failing = not is_taken
            if is_taken:
                self._log.info("trace_export_recovered", endpoint=self._endpoint)
            else:
                reason = self._exporter.problem
                self._log.warning("trace_export_failed", endpoint=self._endpoint, reason=reason)
        return is_taken
