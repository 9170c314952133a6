"""Tracing of a gateway, where its region file asks for it. Elsewhere no part of it is built, and requests are
unaffected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.app.fleet import ReplicaFleet
from gateway.app.observed_core import ObservedCore
from gateway.config.sections import GatewayConfig
from gateway.core.vocabulary import GatewayId, ReplicaId, Target, TargetKind
from gateway.peers.peer_links import PeerRoster
from gateway.request.legs import OutboundRequest
from gateway.request.trace_context import RequestTrace
from gateway.tracing.spans import Server
from gateway.tracing.tracing import Tracing

_PORTS = {"http": 80, "https": 443}


class TracedGateway:
    """Tracing of one gateway, on or off."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self.begin: Callable[[OutboundRequest], RequestTrace] | None = None if tracing is None else tracing.begin
        """Begins the trace of a request; None while tracing is off."""

    def describe(self) -> Mapping[str, object]:
        return {"endpoint": None} if self._tracing is None else self._tracing.describe()


@asynccontextmanager
async def requests_traced(
    config: GatewayConfig, observed: ObservedCore, fleet: ReplicaFleet, roster: PeerRoster
) -> AsyncIterator[TracedGateway]:
    """Trace requests until the context is left; all requests have to be over by then. Raises ConfigError where a needed
    package is not installed."""
    if not config.tracing.is_on:
        yield TracedGateway(None)
        return

    def server_of(target: Target) -> Server | None:
        """Server at a target. The exporting thread calls this: it reads one entry, and changes nothing."""
        if target.kind is TargetKind.PEER:
            link = roster.links.get(GatewayId(target.id))
            return None if link is None else Server(link.peer.address.host, link.peer.address.port)
        endpoint = fleet.endpoints.get(ReplicaId(target.id))
        if endpoint is None:
            return None
        url = urlsplit(endpoint.url)
        return Server(url.hostname or "", url.port or _PORTS[url.scheme], str(endpoint.dialect))

    tracing = Tracing(
        config,
        observed.core,
        observed.metrics.traces,
        serves=observed.serves,
        server_of=server_of,
        clock=observed.clock,
        log=observed.log,
    )
    observed.finished.hand_to(tracing.on_finished)
    tracing.start()
    try:
        yield TracedGateway(tracing)
    finally:
        await tracing.close()
