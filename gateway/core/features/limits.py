"""Tenants' limits: requests are rejected beyond them, and counted from admission to their end."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config import CoreConfig
from gateway.core.effects import EndRequest
from gateway.core.events import Event, ForwardArrived, RequestArrived, TokensSettled
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.limits import METER, TIMER, meter_of_request
from gateway.core.requests import Phase, Rejected, RequestState
from gateway.core.residency import ResidencyPolicy
from gateway.core.tenant_meter import TenantMeter
from gateway.core.vocabulary import RequestProfile


class LimitTenants(Feature):
    """Applies limits to clients' requests. A forward counts at the gateway where it arrived first."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._limits = core.limits
        self._entered: TenantMeter | None = None
        """Meter of the request that is being admitted."""

    def is_on(self) -> bool:
        return self._limits.is_on

    def take_in(self, event: Event, now_ns: int, /) -> bool:
        if not isinstance(event, TokensSettled):
            return False
        self._limits.settle(event.request_id, event.tokens, now_ns)
        return True

    def configure(self, config: CoreConfig, now_ns: int, /) -> None:
        self._limits.configure(config, now_ns)

    def apply_policy(self, policy: ResidencyPolicy, /) -> None:
        self._limits.policy = policy

    def assigned(self, now_ns: int, /) -> None:
        self._limits.assigned(now_ns)

    def wake(self, timer: str, now_ns: int, /) -> None:
        if timer == TIMER:
            self._limits.round(now_ns)

    def reject(self, profile: RequestProfile, now_ns: int, /) -> Rejected | None:
        """Reject a request beyond its tenant's limits; any other is counted from here on."""
        assert self._entered is None, "the request before was admitted or rejected"
        meter = self._limits.enter(profile, now_ns)
        if isinstance(meter, Rejected):
            return meter
        self._entered = meter
        return None

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:  # noqa: ARG002
        meter, self._entered = self._entered, None
        if meter is not None:
            request.keep(METER, meter)

    def ends(self, request: RequestState, end: EndRequest, now_ns: int, /) -> None:
        if request.parts is None:
            return
        meter = meter_of_request(request)
        if meter is not None:
            was_turned_away = not request.attempts and end.outcome.startswith("rejected_")
            meter.leave(now_ns, was_turned_away=was_turned_away)

    def invariants(self) -> Iterator[tuple[str, bool, str]]:
        under_way: dict[int, int] = {}
        for request in self._core.requests.values():
            meter = meter_of_request(request)
            if meter is not None and request.phase is not Phase.ENDED:
                under_way[id(meter)] = under_way.get(id(meter), 0) + 1
                is_own = request.origin_gateway_id is None
                yield "a forward counts where it came in", is_own, request.request_id
        for meter in self._limits:
            counted = under_way.get(id(meter), 0)
            yield (
                "what a tenant has under way are its requests that have not ended",
                meter.running == counted,
                f"{meter.tenant}: {meter.running} counted, {counted} under way",
            )
