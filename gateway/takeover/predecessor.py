"""The side of the process that runs: waits for one that takes its place, and gives it what it has, step by step.

Until the other process says that it serves, all can be taken back, and is where that process dies, stalls or misspeaks.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId
from gateway.ground.threads import finish_in_thread
from gateway.takeover.messages import VERSION, Done, FromSuccessor, Hello, Offer, Ready, Refused, Released, Serving
from gateway.takeover.wire import SEND_MAX_S, OtherGone, TakeOverFault, Wire, listen_at

_HELLO_MAX_S = 5.0
_READY_MAX_S = 120.0
"""What the other process may take to load all that it serves by; this one serves meanwhile."""
_RELEASE_MAX_S = 45.0
"""What this one may take to let go; the other one waits longer than that."""
_SERVING_MAX_S = 20.0
"""What it may take to open the stores; new connections wait meanwhile."""
_Said = TypeVar("_Said", Ready, Serving)
_FAILED = (TakeOverFault, TimeoutError, OSError)


class Estate(Protocol):
    """What a running gateway has to give."""

    def why_not(self) -> str:
        """Why nobody may take over now; empty: somebody may."""
        ...

    def offer(self) -> tuple[Offer, list[socket.socket]]:
        """Copies of the listening sockets, for the caller to close."""
        ...

    async def release(self, ready: Ready) -> Released:
        """Write all down, write and accept nothing from now on, and leave the controller."""
        ...

    async def take_back(self) -> None:
        """After `release`, or a part of it: all is as before."""
        ...

    def give_to(self, successor: Wire[FromSuccessor]) -> None:
        """What requests that still run come to is told there from now on."""
        ...


class Predecessor:
    """`run` is for as long as the process owns the gateway."""

    def __init__(
        self,
        path: Path,
        gateway_id: GatewayId,
        estate: Estate,
        log: FilteringBoundLogger,
        *,
        release_max_s: float = _RELEASE_MAX_S,
        serving_max_s: float = _SERVING_MAX_S,
    ) -> None:
        """Listens at once. Raises OSError."""
        self.has_left = asyncio.Event()
        """Another process serves in this one's place."""
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
        """Whoever has taken over has been told all."""
        self._listening.close()
        successor, self.successor = self.successor, None
        if successor is not None:
            with suppress(OtherGone):
                successor.send(Done())
            successor.close()

    async def _meet(self, connection: socket.socket) -> None:
        try:
            successor: Wire[FromSuccessor] = Wire(connection, FromSuccessor)
        except TakeOverFault as fault:
            self._log.error("take_over_refused", why=str(fault))
            return
        try:
            await self._converse(successor)
        except _FAILED as error:
            why = "the other process took too long" if isinstance(error, TimeoutError) else str(error)
            self._log.error("take_over_failed", pid=successor.other.pid, why=why)
        except Exception:  # noqa: BLE001 - a fault of this side's own leaves the process serving, and is told of
            self._log.exception("take_over_failed", pid=successor.other.pid, why="a fault of this program")
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
        self._log.info("take_over_begun", pid=successor.other.pid)
        ready = _expected(Ready, await successor.receive(_READY_MAX_S))
        if not await self._is_refused(successor, self._estate.why_not()):
            await self._hand_over(successor, ready)

    async def _hand_over(self, successor: Wire[FromSuccessor], ready: Ready) -> None:
        self._log.info("letting_go", pid=successor.other.pid)
        try:
            await finish_in_thread(successor.send, await self._released(ready))
            _expected(Serving, await successor.receive(self._serving_max_s))
        except Exception as error:
            await self._take_back(successor, SEND_MAX_S if isinstance(error, OtherGone) else 0.0)
            raise
        self.successor = successor
        self.has_left.set()
        self._log.info("handed_over", pid=successor.other.pid)
        self._estate.give_to(successor)

    async def _released(self, ready: Ready) -> Released:
        try:
            async with asyncio.timeout(self._release_max_s):
                return await self._estate.release(ready)
        except TimeoutError as error:
            raise TakeOverFault("this process has not let go in time") from error

    async def _take_back(self, successor: Wire[FromSuccessor], wait_max_s: float) -> None:
        """Not before the other process has ended; one that cannot be killed, as where a disk hangs, is told of."""
        while not await asyncio.to_thread(successor.other.end, wait_max_s):
            self._log.critical("the other process cannot be ended: nothing is accepted", pid=successor.other.pid)
        await self._estate.take_back()

    def _why_not(self, said: FromSuccessor) -> str:
        if not isinstance(said, Hello):
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
            self._log.warning("take_over_refused", pid=successor.other.pid, why=why)
            await finish_in_thread(successor.send, Refused(why))
        return bool(why)


def _expected(kind: type[_Said], said: FromSuccessor) -> _Said:
    if not isinstance(said, kind):
        raise TakeOverFault(f"the other process says {type(said).__name__} where {kind.__name__} is due")
    return said
