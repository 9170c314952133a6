"""What becomes of another gateway's forward once it has come, whichever way it came: it is read, looked at, and run
here.

It places nothing: a forward enters the core like any request, and the core's answer, accepted or refused, goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from structlog.typing import FilteringBoundLogger

from gateway.core.effects import EndRequest, RefuseForward
from gateway.core.vocabulary import GatewayId
from gateway.ground.clock import Clock
from gateway.ground.logs import Seldom
from gateway.ground.transport import Claim
from gateway.ground.wire import WireError
from gateway.peers import codec
from gateway.peers.scrutiny import scrutinise
from gateway.request.bodies import Body
from gateway.request.cache_salts import CacheSalts
from gateway.request.legs import Sink
from gateway.request.owner import OwnerContext, RequestOwner
from gateway.request.transcript import Hold
from protos.mesh.v1 import peer_pb2 as pb


class Reception:
    """One for all forwards of all peers."""

    def __init__(
        self,
        owners: OwnerContext,
        *,
        forwards_max: int,
        cache_salts: CacheSalts,
        pass_priority: bool,
        why_closed: Callable[[], str],
        on_malformed: Callable[[GatewayId], None],
        log: FilteringBoundLogger,
    ) -> None:
        """`why_closed` says why no forward is taken whatever the core would say; empty when it may be asked.
        `on_malformed` is told of everybody who forwards what no gateway may."""
        self._owners = owners
        self._forwards_max = forwards_max
        self._cache_salts = cache_salts
        self._pass_priority = pass_priority
        self._why_closed = why_closed
        self._on_malformed = on_malformed
        self._log = log
        self._seldom = Seldom(owners.clock)
        self._forwards = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def clock(self) -> Clock:
        return self._owners.clock

    @property
    def forwards(self) -> int:
        """Those that are here now."""
        return self._forwards

    @property
    def is_full(self) -> bool:
        return self._forwards >= self._forwards_max

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A forward is here meanwhile."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """A forward is here, until `leave`."""
        self._forwards += 1
        self._idle.clear()

    def leave(self) -> None:
        self._forwards -= 1
        if not self._forwards:
            self._idle.set()

    async def until_idle(self, wait_max_s: float) -> None:
        """No forward is here any more, or it took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_max_s):
                await self._idle.wait()

    def read(self, message: pb.ForwardRequest) -> tuple[codec.ArrivedForward, Claim]:
        """Raises WireError. Its body is looked at once it is known whose word it comes with."""
        arrived = codec.read_forward(message, self._owners.clock.now_ns())
        return arrived, (arrived.event.origin_gateway_id, arrived.event.stamp.origin)

    def scrutinise(self, arrived: codec.ArrivedForward) -> tuple[codec.ArrivedForward, Body | None]:
        """Raises WireError."""
        body = scrutinise(arrived.request)
        if body is None:
            return arrived, None
        salt = self._cache_salts.salt(arrived.event.profile.tenant, body)
        return replace(arrived, request=replace(arrived.request, cache_salt=salt)), body

    def why_not_now(self, body: Body | None) -> str:
        """Empty: the core may be asked."""
        if closed := self._why_closed():
            return closed
        if body is not None and body.names_priority and not self._pass_priority:
            return "priority: the engines here serve in order of arrival"
        return ""

    async def run(
        self, arrived: codec.ArrivedForward, sink: Sink, hold: Hold | None = None
    ) -> EndRequest | RefuseForward:
        """`hold`: of the room that its request is counted in. None: its answer is not kept, and the origin has to go on
        with it."""
        return await RequestOwner(self._owners, arrived.event, arrived.request, sink, hold=hold).run()

    def note_malformed(self, origin: GatewayId, error: WireError, caller: str) -> None:
        """The caller's fault, which it counts against itself: neither the core nor an engine hears of it."""
        self._on_malformed(origin)
        passed_over = self._seldom.turn(origin or caller.rpartition(":")[0])
        if passed_over is not None:
            self._log.error(
                "malformed forward", detail=str(error), origin=origin, caller=caller, passed_over=passed_over
            )

    def note_fault(self, error: BaseException) -> None:
        """An error of our own, in serving a forward."""
        if self._owners.on_fault is not None:
            self._owners.on_fault(error)
