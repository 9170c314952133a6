"""Lockdown in a running gateway: the operator's route, the store of the order, and what is shown of it."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from gateway.config.sections import GatewayConfig
from gateway.core.gateway_core import GatewayCore
from gateway.door.admin import GIVEN_AWAY
from gateway.features.extension import Extension, Host
from gateway.features.lockdown.switch import LockdownOrder, LockdownSwitch
from mesh.admin_server import OPERATOR, as_json, fault, needs
from mesh.operators_config import Role


class LockdownExtension(Extension):
    """Takes an operator's order, keeps it over a restart, and shows it."""

    name = "lockdown"
    state_key = "lockdown_order"

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._host = host
        self._switch = LockdownSwitch(
            config.gateway_id, config.state.folder, submit=host.submit, clock=host.clock, log=host.log
        )
        self.register_series(host.metrics.registry, host.core)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        level = Gauge("nightside_lockdown", "1 while a lockdown disables all forwarding.", registry=registry)
        level.set_function(lambda: core.forwarding_stop is not None)

    def restore(self) -> None:
        self._switch.restore()

    def describe(self) -> dict[str, object]:
        return self._switch.describe()

    def notes(self) -> dict[str, str]:
        is_stopped = self._host.core.forwarding_stop is not None
        return {"lockdown": self._switch.state.reason or "no reason given"} if is_stopped else {}

    def on_page(self) -> dict[str, object]:
        return {"lockdown_reason": self._switch.state.reason, "lockdown_since": self._switch.state.since}

    def add_routes(self, admin: web.Application, /) -> None:
        admin.router.add_post("/admin/lockdown", self._order)

    @needs(Role.DRAIN)
    async def _order(self, request: web.Request) -> web.Response:
        """Require JSON: a page in an operator's browser cannot send this content type without permission (CSRF)."""
        if request.content_type != "application/json":
            return fault(415, "send application/json")
        try:
            order = msgspec.json.decode(await request.read(), type=LockdownOrder)
        except msgspec.DecodeError as error:
            return fault(400, str(error))
        if self._host.is_given_away:
            return fault(409, GIVEN_AWAY)
        if not order.active:
            self._host.trust.restore()
        by = request[OPERATOR]
        return as_json(await self._switch.order(active=order.active, cut=order.cut, reason=order.reason, by=by))
