"""Checks that a gateway is at rest: no request runs or waits, and no count has leaked."""

from __future__ import annotations

from gateway.app.gateway import GatewayHandle
from gateway.core.kernel.description import gauges_of
from tests.support.gateways import counted, until


def unrest(gateway: GatewayHandle) -> list[str]:
    """Counts that are not zero, in words; empty once the gateway is at rest."""
    found = [f"request {each}" for each in gateway.core.requests]
    found += [f"{gateway.driver.open_requests} open requests"] if gateway.driver.open_requests else []
    for state in [*gateway.core.replicas, *gateway.core.peers]:
        if state.in_flight:
            found.append(f"{state.in_flight} in flight at {state.target}")
    found += [f"a forward to {state.target} without an end" for state in gateway.core.peers if state.unreflected]
    gauges = gauges_of(gateway.core, gateway.core._now_ns or 0)
    return found + ([f"{gauges.queue_length} queued"] if gauges.queue_length else [])


async def until_at_rest(*gateways: GatewayHandle) -> None:
    """Wait until each gateway's core is at rest, and assert that its metrics page agrees."""
    for gateway in gateways:
        await until(lambda gateway=gateway: not unrest(gateway))  # type: ignore[misc]
        for name in ("attempts_in_flight", "queue_length", "requests_open"):
            assert counted(gateway, name) == 0, name
