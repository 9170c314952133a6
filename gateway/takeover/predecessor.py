"""Predecessor's side of a hand-over: waits for a process that takes its place, and hands the gateway over step by step.

Until the successor says that it serves, every step can be taken back, and is taken back where the successor dies,
stalls or breaks the protocol.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId
from gateway.takeover.messages import (
    VERSION,
    Done,
    FromSuccessor,
    Released,
    Serving,
    TakeoverHello,
    TakeoverOffer,
    TakeoverReady,
    TakeoverRefused,
)
from gateway.takeover.wire import SEND_MAX_S, CounterpartGone, TakeOverFault, Wire, listen_at
from mesh.threads import finish_in_thread

_HELLO_MAX_S = 5.0
_READY_MAX_S = 120.0
"""Seconds for the successor to load its state; the predecessor serves meanwhile."""
_RELEASE_MAX_S = 45.0
"""Seconds for the predecessor to release the gateway; the successor waits longer than that."""
_SERVING_MAX_S = 20.0
"""Seconds for the successor to open the stores; new connections wait meanwhile."""
_Said = TypeVar("_Said", TakeoverReady, Serving)
_FAILED = (TakeOverFault, TimeoutError, OSError)


class HandedOverParts(Protocol):
    """Parts of a running gateway that are handed over."""

    def why_not(self) -> str:
        """Reason why no process may take over; empty where one may."""
        ...

    def offer(self) -> tuple[TakeoverOffer, list[socket.socket]]:
        """Offer and copies of the listening sockets, which the caller closes."""
        ...

    async def release(self, ready: TakeoverReady) -> Released:
        """Write all state down, stop writing and accepting, and leave the controller."""
        ...

    async def take_back(self) -> None:
        """Undo `release`, or the part of it that was done."""
        ...

    def give_to(self, successor: Wire[FromSuccessor]) -> None:
        """Send usage and audit lines of requests that still run to the successor."""
        ...


class Predecessor:
    """Listener for successors; `run` lasts for as long as the process owns the gateway."""

    def __init__(
        self,
        path: Path,
        gateway_id: GatewayId,
        estate: HandedOverParts,
        log: FilteringBoundLogger,
        *,
        release_max_s: float = _RELEASE_MAX_S,
        serving_max_s: float = _SERVING_MAX_S,
    ) -> None:
        """Start to listen. Raises OSError."""
        self.has_left = asyncio.Event()
        """Set once another process serves in this one's place."""
        self.successor: Wire[FromSuccessor] | None = None
        self._listening = listen_at(path)
        self._gateway_id = gateway_id
        self._estate = estate
        self._release_max_s = release_max_s
        self._serving_max_s = serving_max_s
        self._log = log

    async def run(self) -> None:
        while self.successor is None:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listening)
            await self._meet(connection)
        self._listening.close()

    def close(self) -> None:
        """Stop listening, and tell a successor that all messages were sent."""
        self._listening.close()
        successor, self.successor = self.successor, None
        if successor is not None:
            with suppress(CounterpartGone):
                successor.send(Done())
            successor.close()

    async def _meet(self, connection: socket.socket) -> None:
        try:
            successor: Wire[FromSuccessor] = Wire(connection, FromSuccessor)
        except TakeOverFault as fault:
            self._log.error("takeover_connection_rejected", reason=str(fault))
            return
        try:
            await self._converse(successor)
        except _FAILED as error:
            why = "the other process took too long" if isinstance(error, TimeoutError) else str(error)
            self._log.error("takeover_failed", pid=successor.other.pid, reason=why)
        except Exception:  # noqa: BLE001 - a defect of this side is logged, and the process goes on serving
            self._log.exception("takeover_failed", pid=successor.other.pid, reason="a fault of this program")
        finally:
            if self.successor is None:
                successor.close()

    async def _converse(self, successor: Wire[FromSuccessor]) -> None:
        hello = await successor.receive(_HELLO_MAX_S)
        if await self._is_refused(successor, self._why_not(hello)):
            return
        offer, sockets = self._estate.offer()
        try:
            await finish_in_thread(successor.send, offer, sockets)
        finally:
            for each in sockets:
                each.close()
        self._log.info("takeover_started", pid=successor.other.pid)
        ready = _expected(TakeoverReady, await successor.receive(_READY_MAX_S))
        if not await self._is_refused(successor, self._estate.why_not()):
            await self._hand_over(successor, ready)

    async def _hand_over(self, successor: Wire[FromSuccessor], ready: TakeoverReady) -> None:
        self._log.info("takeover_release_started", pid=successor.other.pid)
        try:
            await finish_in_thread(successor.send, await self._released(ready))
            _expected(Serving, await successor.receive(self._serving_max_s))
        except Exception as error:
            await self._take_back(successor, SEND_MAX_S if isinstance(error, CounterpartGone) else 0.0)
            raise
        self.successor = successor
        self.has_left.set()
        self._log.info("takeover_handed_over", pid=successor.other.pid)
        self._estate.give_to(successor)

    async def _released(self, ready: TakeoverReady) -> Released:
        try:
            async with asyncio.timeout(self._release_max_s):
                return await self._estate.release(ready)
        except TimeoutError as error:
            raise TakeOverFault("this process has not let go in time") from error

    async def _take_back(self, successor: Wire[FromSuccessor], wait_max_s: float) -> None:
        """Take the gateway back once the successor has ended; one that cannot be killed, as where a disk hangs, is
        logged."""
        while not await asyncio.to_thread(successor.other.end, wait_max_s):
            self._log.critical("successor_not_terminated", pid=successor.other.pid)
        await self._estate.take_back()

    def _why_not(self, said: FromSuccessor) -> str:
        if not isinstance(said, TakeoverHello):
            return "the first message is no hello"
        if said.version != VERSION:
            return (
                f"it speaks version {said.version} of the hand-over, and the running process version {VERSION}: "
                "restart the gateway instead"
            )
        if said.gateway != self._gateway_id:
            return f"it is gateway {said.gateway}, and {self._gateway_id} runs here"
        return self._estate.why_not()

    async def _is_refused(self, successor: Wire[FromSuccessor], why: str) -> bool:
        if why:
            self._log.warning("takeover_refused", pid=successor.other.pid, reason=why)
            await finish_in_thread(successor.send, TakeoverRefused(why))
        return bool(why)


def _expected(kind: type[_Said], said: FromSuccessor) -> _Said:
    if not isinstance(said, kind):
        raise TakeOverFault(f"the other process says {type(said).__name__} where {kind.__name__} is due")
    return said
