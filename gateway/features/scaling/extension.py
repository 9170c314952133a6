"""Scaling of one gateway's pools: exchanges demand with peers, computes the wanted replicas at each interval, and
reports them to the metrics page, operators and a webhook. The decisions are in `gateway.core.features.scaling`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Never

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.features.scaling.demand import would_have_run
from gateway.core.features.scaling.sampling import accepts_of, key_by_model, key_by_replica, samples_of, ways_of
from gateway.core.features.scaling.scaler import Scaler
from gateway.core.features.scaling.vocabulary import WHOLE, Heard, PoolKey, ScalingReason, ScalingReport, Want
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import ModelName, PeerSpec, RequestProfile
from gateway.features.extension import Extension, Host
from gateway.features.scaling.codec import add_scaling, read_scaling
from gateway.features.scaling.metrics import ScalingMetrics
from gateway.features.scaling.webhook import Result, Webhook
from gateway.peers.heartbeats import ReadHeartbeat, TakeIn, WriteHeartbeat
from gateway.request.legs import RequestSummary
from mesh.admin_server import as_json, needs
from mesh.control.vocabulary import WantedReplicas
from mesh.operators_config import Role
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_MINUTE_NS = 60 * _SECOND_NS
_MINUTES_A_DAY = 24 * 60


class ScalingExtension(Extension):
    """Scaling of one gateway. Without listed pools it says nothing, and costs nothing."""

    name = "scaling"
    labels: ClassVar = {
        ("nightside_replicas_wanted_changes_total", "reason"): Label("Cause of the change.", tuple(ScalingReason)),
        ("nightside_scaling_messages_total", "result"): Label("Result of the call to the webhook.", tuple(Result)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._config = config.scaling
        self._gateway_id = config.gateway_id
        self._region = config.place.region
        self._host = host
        self._scaler = Scaler(
            config.gateway_id,
            config.place.region,
            config.scaling,
            [each.as_settings() for each in config.scaling.pools],
            stale_ns=config.peering.silence_max_ns,
        )
        self._by_model: dict[ModelName, PoolKey] = {}
        self._by_replica: dict[str, PoolKey] = {}
        """Pools by model and by replica, as of the last look."""
        self._report = ScalingReport()
        """Report for peers, as of the last look."""
        self._metrics = ScalingMetrics(host.metrics.registry, self.wants)
        self._webhook = self._make_webhook()
        if self.is_on:
            host.finished.hand_to(self._on_finished)

    @property
    def is_on(self) -> bool:
        return bool(self._config.pools)

    def wants(self) -> Iterable[Want]:
        return self._scaler.wants.values()

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        ScalingMetrics(registry, tuple)

    def heartbeat_writer(self) -> WriteHeartbeat | None:
        return self._write if self.is_on else None

    def heartbeat_reader(self, peer: PeerSpec, /) -> ReadHeartbeat | None:
        return partial(self._read, peer) if self.is_on and self._config.mesh else None

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        if self.is_on:
            tenure.run("scaling", self._look_again_and_again)
        if self._webhook is not None:
            tenure.run("scaling_webhook", self._webhook.run)

    def wanted_replicas(self) -> tuple[WantedReplicas, ...]:
        return tuple(
            WantedReplicas(want.key.model, want.key.pool, want.wanted, want.ready, want.reason) for want in self.wants()
        )

    def describe(self) -> dict[str, object]:
        """State for operators, and for autoscalers that read JSON."""
        return {
            "region": self._region,
            "pools": [_described(want) for want in self.wants()],
            "listened_to": self._scaler.listened_to(),
            "webhook_fault": "" if self._webhook is None else self._webhook.fault,
        }

    def add_routes(self, admin: web.Application, /) -> None:
        """Add the wanted replicas as JSON, for operators and for autoscalers that do not read Prometheus."""

        @needs(Role.LOOK)
        async def scaling(_: web.Request) -> web.Response:
            return as_json(self.describe())

        admin.router.add_get("/admin/scaling", scaling)

    def look(self) -> None:
        """Compute the wanted replicas again."""
        core, clock = self._host.core, self._host.clock
        self._by_model = key_by_model(core, self._scaler.pools)
        self._by_replica = key_by_replica(core, self._scaler.pools)
        before = {want.key: want.wanted for want in self.wants()}
        wants = self._scaler.look(
            clock.now_ns(),
            samples_of(core, self._scaler.pools, self._config.classes),
            minute_of_day=clock.wall_ns() // _MINUTE_NS % _MINUTES_A_DAY,
            ways=ways_of(core) if self._config.mesh else (),
            accepts=accepts_of(core) if self._config.mesh else (),
        )
        self._report = self._scaler.report
        for want in wants:
            if want.key not in before or want.wanted != before[want.key]:
                self._changed(want, before.get(want.key))

    async def _look_again_and_again(self) -> Never:
        """Look at each interval, but not at once: engines have to be probed first."""
        while True:
            await asyncio.sleep(self._config.interval_ns / _SECOND_NS)
            self.look()

    def _write(self, message: pb.SubscribeResponse, _: PeerSpec) -> None:
        add_scaling(message, self._report)

    def _read(self, peer: PeerSpec, message: pb.SubscribeResponse) -> TakeIn:
        return partial(self._hear, peer, read_scaling(message))

    def _hear(self, peer: PeerSpec, report: ScalingReport) -> bool:
        self._scaler.hear(Heard(peer.gateway_id, peer.place.region, report, self._host.clock.now_ns()))
        return False

    def _changed(self, want: Want, before: int | None) -> None:
        """Report a change. The first figure is reported too, so that its receiver need not ask for it."""
        names = {"model": want.key.model, "pool": want.key.pool}
        self._host.log.info("replicas_wanted_changed", **names, wanted=want.wanted, before=before, reason=want.reason)
        if before is not None:
            self._metrics.changes.add(want.region, want.key.model, want.key.pool, want.reason)
        if self._webhook is not None:
            self._webhook.tell(want, want.ready if before is None else before)

    def _on_finished(
        self, profile: RequestProfile, end: EndRequest, _: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Count clients' requests only: a forwarded request is counted by the peer that forwards it."""
        if record is None or record.origin is not None or profile.service_class not in self._config.classes:
            return
        legs = record.legs
        key = self._by_replica.get(legs[-1].target.id) if legs else None
        key = key or self._by_model.get(profile.model)
        if key is None:
            return
        if legs and legs[-1].ended_ns is not None:
            self._scaler.demands[key].ended(legs[-1].ended_ns - legs[0].started_ns)
        elif would_have_run(end.outcome):
            self._scaler.demands[key].ended(None)

    def _make_webhook(self) -> Webhook | None:
        config = self._config.webhook
        if config is None or not self.is_on:
            return None
        host = self._host
        return Webhook(config, self._gateway_id, clock=host.clock, count=self._metrics.messages.add, log=host.log)


def _described(want: Want) -> dict[str, object]:
    return {
        "model": want.key.model,
        "pool": want.key.pool,
        "wanted": want.wanted,
        "reason": want.reason,
        "ready": want.ready,
        "alone": want.alone,
        "offered": want.offered / WHOLE,
        "borrowed": want.borrowed / WHOLE,
        "lent": want.lent / WHOLE,
        "missing": want.missing_replicas,
        "least": want.least,
        "most": want.most,
    }
