"""Receives the forwards of other gateways: reads, checks and runs them here.

It makes no placement: a forward enters the core like any request, and the core's answer, accepted or refused, goes
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId
from gateway.peers import codec
from gateway.peers.forward_checks import check_forward
from gateway.request.bodies import Body
from gateway.request.cache_salts import CacheSalts
from gateway.request.kept_answer import Hold
from gateway.request.legs import Sink
from gateway.request.proxied import ProxiedRequest, RequestContext
from mesh.clock import Clock
from mesh.logs import LogRateLimit
from mesh.transport import Claim
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb


class Reception:
    """Counts, checks and runs all forwards of all peers."""

    def __init__(
        self,
        context: RequestContext,
        clock: Clock,
        turn_over: Callable[[], None],
        *,
        forwards_max: int,
        cache_salts: CacheSalts,
        pass_priority: bool,
        why_closed: Callable[[], str],
        on_malformed: Callable[[GatewayId], None],
        log: FilteringBoundLogger,
    ) -> None:
        """`why_closed` gives the reason for refusing every forward without asking the core; empty if the core may be
        asked. `on_malformed` is called for each gateway that forwards a malformed request."""
        self._context = context
        self.clock = clock
        self._turn_over = turn_over
        self._forwards_max = forwards_max
        self._cache_salts = cache_salts
        self._pass_priority = pass_priority
        self._why_closed = why_closed
        self._on_malformed = on_malformed
        self._log = log
        self._seldom = LogRateLimit(clock)
        self._forwards = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def forwards(self) -> int:
        """Forwards that run here at this moment."""
        return self._forwards

    @property
    def is_full(self) -> bool:
        return self._forwards >= self._forwards_max

    def enter(self) -> None:
        """Count a forward until `leave`."""
        self._forwards += 1
        self._idle.clear()

    def leave(self) -> None:
        self._forwards -= 1
        if not self._forwards:
            self._idle.set()

    async def until_idle(self, wait_max_s: float) -> None:
        """Wait until no forward runs here, or `wait_max_s` seconds have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_max_s):
                await self._idle.wait()

    def read(self, message: pb.ForwardRequest) -> tuple[codec.ArrivedForward, Claim]:
        """Read the message, but not its body, and return it with the claim about its origin, which is still to be
        checked. Raises WireError."""
        arrived = codec.read_forward(message, self.clock.now_ns())
        return arrived, (arrived.event.origin_gateway_id, arrived.event.stamp.origin)

    def check_forward(self, arrived: codec.ArrivedForward) -> tuple[codec.ArrivedForward, Body | None]:
        """Check the body and compute the request's cache salt. Raises WireError."""
        body = check_forward(arrived.request)
        if body is None:
            return arrived, None
        domain = self._cache_salts.domain(arrived.event.profile.tenant)
        salt = self._cache_salts.salt(domain, body.salt, body)
        return replace(arrived, request=replace(arrived.request, cache_salt=salt)), body

    def why_not_now(self, body: Body | None) -> str:
        """Reason for refusing this forward without asking the core; empty if the core may be asked."""
        if closed := self._why_closed():
            return closed
        if body is not None and body.names_priority and not self._pass_priority:
            return "priority: the engines here serve in order of arrival"
        return ""

    def request_of(self, arrived: codec.ArrivedForward, sink: Sink, hold: Hold | None = None) -> ProxiedRequest:
        """Request of a forward, to be begun. `hold` reserves more of the memory that its body is counted in. None: the
        answer is not kept, and what follows if it breaks is left to the origin."""
        return ProxiedRequest(self._context, arrived.event, arrived.request, sink, hold=hold)

    def turn_over(self) -> None:
        """Hand the core what the forwards have posted in this turn."""
        self._turn_over()

    def note_malformed(self, origin: GatewayId, error: WireError, caller: str) -> None:
        """Count and log a malformed forward against its origin; neither the core nor an engine hears of it."""
        self._on_malformed(origin)
        passed_over = self._seldom.turn(origin or caller.rpartition(":")[0])
        if passed_over is not None:
            self._log.error(
                "malformed_forward", reason=str(error), origin=origin, caller=caller, suppressed=passed_over
            )

    def note_fault(self, error: BaseException) -> None:
        """Report an internal error in serving a forward."""
        if self._context.on_fault is not None:
            self._context.on_fault(error)
