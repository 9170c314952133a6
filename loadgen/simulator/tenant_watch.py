"""Running requests of tenants with limits, at all simulated gateways together, followed by events and effects alone.

It checks the limits stated in docs/how_to/tenant_limits.md, and records how near tenants came to them. It reads no
core.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.features.limits.config import LimitScope
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect, EndRequest
from gateway.core.kernel.events import RequestArrived
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.tenant_config import DEFAULT_TENANT
from gateway.core.vocabulary import GatewayId, Outcome, RequestId, TenantName
from loadgen.simulator.checkers import Broken
from loadgen.simulator.observers import GatewaySpec

_SECOND_NS = 1_000_000_000
REFUSALS = frozenset(
    {
        Outcome.REJECTED_TENANT_CONCURRENCY,
        Outcome.REJECTED_TENANT_REQUEST_RATE,
        Outcome.REJECTED_TENANT_TOKEN_RATE,
    }
)


@dataclass(slots=True)
class TenantFigures:
    """Record of one tenant."""

    running: Counter[GatewayId] = field(default_factory=Counter)
    peaks: dict[int, int] = field(default_factory=dict)
    """Maximum of running requests at once, by second."""
    let_in: list[int] = field(default_factory=list)
    """Time at which each request was admitted."""
    full_ns: int | None = None
    """Time at which the whole limit was in use for the first time."""
    refused: Counter[Outcome] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.running.total()

    def peak(self, from_s: int = 0, to_s: int = 1 << 62) -> int:
        return max([peak for second, peak in self.peaks.items() if from_s <= second < to_s], default=0)


class TenantWatch:
    """Observer of gateways. `sides`: number of parts that do not hear each other into which the mesh may split in this
    run; each may use the whole limit."""

    def __init__(self, sides: int = 1) -> None:
        self.tenants: dict[TenantName, TenantFigures] = {}
        self._sides = sides
        self._gateways = 0
        self._config = CoreConfig()
        self._open: dict[RequestId, tuple[GatewayId, TenantName]] = {}

    def on_start(self, spec: GatewaySpec, _policy: ResidencyPolicy, _core: GatewayCore) -> None:
        self._config = spec.config
        self._gateways = len(spec.peers) + 1
        for request_id, (gateway_id, tenant) in list(self._open.items()):
            if gateway_id == spec.gateway_id:
                self._ended(request_id, gateway_id, tenant)

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        if not self._config.tenants:
            return
        if isinstance(event, RequestArrived):
            tenant = event.profile.tenant
            limits = self._config.tenants.get(tenant, self._config.tenants.get(DEFAULT_TENANT))
            if limits is not None and limits.has_limits and not event.profile.is_control:
                self._arrived(now_ns, gateway_id, event, effects)
        for effect in effects:
            if isinstance(effect, EndRequest) and effect.request_id in self._open:
                self._ended(effect.request_id, *self._open[effect.request_id])

    def _arrived(self, now_ns: int, gateway_id: GatewayId, event: RequestArrived, effects: list[Effect]) -> None:
        request_id, tenant = event.profile.request_id, event.profile.tenant
        figures = self.tenants.setdefault(tenant, TenantFigures())
        for effect in effects:
            if isinstance(effect, EndRequest) and effect.request_id == request_id:
                if effect.outcome in REFUSALS:
                    figures.refused[effect.outcome] += 1
                return
        self._open[request_id] = gateway_id, tenant
        figures.running[gateway_id] += 1
        figures.let_in.append(now_ns)
        second = now_ns // _SECOND_NS
        figures.peaks[second] = max(figures.peaks.get(second, 0), figures.total)
        self._check(now_ns, tenant, figures)

    def _ended(self, request_id: RequestId, gateway_id: GatewayId, tenant: TenantName) -> None:
        del self._open[request_id]
        self.tenants[tenant].running[gateway_id] -= 1

    def _check(self, now_ns: int, tenant: TenantName, figures: TenantFigures) -> None:
        config = self._config.tenants.get(tenant, self._config.tenants.get(DEFAULT_TENANT))
        if config is None or config.concurrency_max is None:
            return
        if figures.full_ns is None and figures.total >= config.concurrency_max:
            figures.full_ns = now_ns
        bound = self._sides * bound_of(config.concurrency_max, self._gateways, self._config.shares.floor_share)
        if config.limit_scope is LimitScope.MESH and figures.total > bound:
            detail = f"{figures.total} requests of {tenant} are under way, of at most {bound}"
            raise Broken(now_ns, "tenants keep to their limits", detail)


def bound_of(limit: int, gateways: int, floor_share: float) -> int:
    """Maximum of running requests while all gateways hear each other: the limit, plus the floors of all but one
    gateway. Restated here, independent of the core."""
    floor = int(limit * floor_share) // gateways
    return limit + (gateways - 1) * (floor or 1) if floor or limit >= gateways else 2 * limit
