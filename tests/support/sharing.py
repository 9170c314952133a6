"""Gateways that enforce a tenant's limits together, with engines that never answer and a network that only delays."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.limits.config import SharesConfig
from gateway.core.kernel.config import QueueConfig
from gateway.core.kernel.effects import EndRequest, PublishLoad
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import (
    GatewayId,
    LoadReport,
    Outcome,
    PeerObservation,
    PeerSpec,
    Place,
    RequestId,
    TenantName,
    TenantUse,
)
from tests.support.core import MS, SECOND, TENANT, Desk, desk, profile, replica_spec

_NUMBERS = count()


def limited(shares: SharesConfig | None = None, **limits: object) -> CoreConfig:
    """Config in which the tests' tenant has these limits."""
    tenants = {TENANT: TenantConfig(**limits)}  # type: ignore[arg-type]
    return CoreConfig(tenants=tenants, shares=shares or SharesConfig(), queue=QueueConfig(wait_max_ns=3600 * SECOND))


def told_by(name: str, place: Place, *uses: TenantUse, sequence: int = 1) -> LoadReport:
    return LoadReport(GatewayId(name), place, sequence, True, 1, "digest", uses=uses)


def heard(one: Desk, name: str, place: Place, *uses: TenantUse, rtt_ms: int = 50) -> None:
    """Deliver a peer's heartbeat with these uses of tenants."""
    report = told_by(name, place, *uses, sequence=next(_NUMBERS) + 1)
    observation = PeerObservation(report, one.now_ns, one.now_ns, rtt_ms * MS, rtt_ms * MS)
    one.tell(events.PeersObserved((observation,)))


def asked(
    one: Desk, *, tenant: TenantName = TENANT, request_id: str = "", tokens: int | None = None
) -> EndRequest | None:
    """Have a request arrive; returns its refusal, or None if it was let in."""
    wanted = profile(request_id or f"asked-{next(_NUMBERS)}", tenant=tenant)
    wanted = replace(wanted, output_tokens_max=tokens)
    effects = one.tell(events.RequestArrived(wanted, one.now_ns + 600 * SECOND))
    return next((each for each in effects if isinstance(each, EndRequest)), None)


class Sharing:
    """A mesh of cores. Each published report reaches every other core after a delay, unless the way between them is
    cut."""

    def __init__(self, places: dict[str, Place], config: CoreConfig, *, way_ns: int = 40 * MS) -> None:
        self.now_ns = 0
        self.way_ns = way_ns
        self.cut: set[frozenset[str]] = set()
        self.running: dict[str, list[RequestId]] = {name: [] for name in places}
        self.refused: Counter[Outcome] = Counter()
        self.peak = 0
        self._ways: list[tuple[int, int, str, LoadReport]] = []
        self.desks = {
            name: desk(
                place,
                replicas=[replica_spec(f"{name}-r", place)],
                peers=[PeerSpec(GatewayId(other), at) for other, at in places.items() if other != name],
                config=config,
                gateway_id=name,
                probed=False,  # admitted requests wait
            )
            for name, place in places.items()
        }
        self.wait(4 * SECOND)  # all have heard each other

    @property
    def total(self) -> int:
        return sum(map(len, self.running.values()))

    def ask(self, name: str, *, tenant: TenantName = TENANT) -> bool:
        """Ask for admission; True if it is granted."""
        request_id = f"{name}-{next(_NUMBERS)}"
        wanted = replace(profile(request_id, tenant=tenant), output_tokens_max=1)
        end = self._tell(name, events.RequestArrived(wanted, self.now_ns + 3600 * SECOND))
        if end is not None:
            self.refused[end.outcome] += 1
            return False
        self.running[name].append(RequestId(request_id))
        self.peak = max(self.peak, self.total)
        return True

    def end_one(self, name: str) -> None:
        if self.running[name]:
            self._tell(name, events.RequestAbandoned(self.running[name].pop(0)))

    def wait(self, duration_ns: int) -> None:
        end_ns = self.now_ns + duration_ns
        while (at_ns := self._next_ns()) <= end_ns:
            self.now_ns = max(at_ns, self.now_ns)
            self._step()
        self.now_ns = end_ns

    def _next_ns(self) -> int:
        wakes = [wake for one in self.desks.values() if (wake := one.core.next_wakeup_ns()) is not None]
        return min([*wakes, *[at_ns for at_ns, *_ in self._ways[:1]]])

    def _step(self) -> None:
        while self._ways and self._ways[0][0] <= self.now_ns:
            _, _, name, report = heapq.heappop(self._ways)
            observation = PeerObservation(
                report, self.now_ns - self.way_ns, self.now_ns, 2 * self.way_ns, 2 * self.way_ns
            )
            self._tell(name, events.PeersObserved((observation,)))
        for name, one in self.desks.items():
            wake_ns = one.core.next_wakeup_ns()
            if wake_ns is not None and wake_ns <= self.now_ns:
                self._tell(name, events.TimePassed())

    def _tell(self, name: str, event: events.Event) -> EndRequest | None:
        one = self.desks[name]
        one.now_ns = self.now_ns
        end = None
        for effect in one.tell(event):
            if isinstance(effect, PublishLoad):
                self._send(name, effect.report)
            elif isinstance(effect, EndRequest):
                end = effect
        return end

    def _send(self, name: str, report: LoadReport) -> None:
        for other in self.running:
            if other != name and frozenset((name, other)) not in self.cut:
                heapq.heappush(self._ways, (self.now_ns + self.way_ns, next(_NUMBERS), other, report))
