"""Batches of one gateway: the routes of clients, the loop that runs batches, and their figures."""

from __future__ import annotations

from typing import ClassVar

from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import RequestId
from gateway.door.api import ClientApi
from gateway.door.settings import HttpSettings
from gateway.features.batches.api import BatchApi
from gateway.features.batches.book import BatchBook
from gateway.features.batches.intake import BatchIntake
from gateway.features.batches.lookout import Lookout
from gateway.features.batches.message_api import MessageBatchApi
from gateway.features.batches.metrics import LEASE_CHANGES, LINE_RESULTS, BatchSeries
from gateway.features.batches.opening import book_for, check_batches
from gateway.features.batches.paces import ModelPaces
from gateway.features.batches.progress import batches_view, page_table
from gateway.features.batches.runner import BatchRunner
from gateway.features.batches.state import BatchStatus, ClientBatch
from gateway.features.batches.status import BatchesView
from gateway.features.batches.upload_api import UploadApi
from gateway.features.extension import Extension, Host, KeyInForce
from mesh.page.rows import TableShown
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor


class BatchesExtension(Extension):
    """Batches of a gateway whose region file names a place for them."""

    name = "batches"
    labels: ClassVar = {
        ("nightside_batches", "status"): Label("Status of the batch.", tuple(map(str, BatchStatus))),
        ("nightside_batch_lines_total", "result"): Label("File that the line's result is in.", LINE_RESULTS),
        ("nightside_batch_leases_total", "change"): Label(
            "Taken over from a silent gateway, or lost to another one.", LEASE_CHANGES
        ),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._host = host
        self._config = config
        self._book: BatchBook | None = None
        self._runner: BatchRunner | None = None
        self._paces = ModelPaces()
        if config.batches.is_on:
            self._book = book_for(config, host.clock)
            self._runner = BatchRunner(
                config.batches,
                self._book,
                host.clock,
                host.log,
                self._may_run,
                waits_in_drain=self._waits_in_drain,
            )
            host.metrics.registry.register(BatchSeries(self._book, self._runner))
            host.finished.hand_to(self._paces.on_finished)

    @staticmethod
    def check_files(config: GatewayConfig, before: GatewayConfig | None, /) -> None:
        if before is None or config.batches != before.batches:
            check_batches(config.batches)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        registry.register(BatchSeries())

    def _may_run(self, batch: ClientBatch) -> bool:
        """True if the policy in force lets the requests of a batch enter this region."""
        return self._host.core.may_enter(batch.tenant, None if batch.key is None else batch.key.process)

    def _waits_in_drain(self, request_id: RequestId) -> bool:
        """True if the gateway drains, and a request waits for an engine."""
        core = self._host.core
        request = core.requests.get(request_id) if core.draining else None
        return request is not None and request.attempt is None

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        if self._runner is not None:
            tenure.run("batches", self._runner.run)

    def serve_clients(self, api: ClientApi, key_in_force: KeyInForce | None, /) -> None:
        if self._book is None or self._runner is None:
            return
        settings = HttpSettings.from_config(self._config)
        intake = BatchIntake(
            self._config.batches,
            settings,
            self._book,
            clock=self._host.clock,
            log=self._host.log,
            key_in_force=key_in_force,
        )
        lookout = Lookout(
            self._config.batches,
            settings,
            self._host.core,
            self._book,
            in_line=self._runner.in_line,
            paces=self._paces,
            api=api,
            clock=self._host.clock,
        )
        api.add_routes(BatchApi(intake, lookout).find)
        api.add_routes(MessageBatchApi(intake).find)
        api.add_routes(UploadApi(intake).find)
        self._runner.meet_clients(api, key_in_force)

    def _view(self) -> BatchesView | None:
        if self._book is None or self._runner is None:
            return None
        label, now_ns = self._host.metrics.tenant_label, self._host.clock.now_ns()
        return batches_view(self._book, self._runner.stopped, label, self._runner.now_s, now_ns)

    def describe(self) -> object | None:
        return self._view()

    def page_table(self) -> TableShown | None:
        view = self._view()
        return None if view is None or self._runner is None else page_table(view, self._runner.now_s)

    def notes(self) -> dict[str, str]:
        if self._runner is None:
            return {}
        if fault := self._runner.store_fault:
            return {"batches": f"their store does not answer: {fault}"}
        fault = self._runner.write_fault
        return {"batches": f"results cannot be written: {fault}"} if fault else {}
