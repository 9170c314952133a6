"""Successor's side of a hand-over: introduces itself, is given the listening sockets, says when it has loaded all, and
then owns the gateway. It takes only what it is given, unless the predecessor has died.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId
from gateway.takeover.messages import (
    VERSION,
    AccountMessage,
    Audited,
    Done,
    FromPredecessor,
    Left,
    Released,
    Serving,
    TakeoverHello,
    TakeoverOffer,
    TakeoverReady,
    TakeoverRefused,
    UsageMessage,
)
from gateway.takeover.wire import SEND_MAX_S, CounterpartGone, TakeOverFault, Wire, connect_to
from mesh.values import Address, parse_address

_RELEASED_MAX_S = 60.0


class RemainderReceiver(Protocol):
    """Receiver of usage and audit lines of requests that still run at the predecessor."""

    def take_used(self, used: UsageMessage) -> None: ...

    def take_lines(self, lines: list[bytes]) -> None: ...


class Successor:
    """One hand-over, seen by the successor. Its methods stand in the order of their calls."""

    def __init__(self, predecessor: Wire[FromPredecessor], offer: TakeoverOffer, sockets: list[socket.socket]) -> None:
        self.requests_left: int | None = None
        """Requests that still run at the predecessor; None before the release and once the predecessor has gone."""
        self._predecessor = predecessor
        self._offer = offer
        self._sockets = list(zip(offer.sockets, sockets, strict=True))

    @classmethod
    def begin(cls, path: Path, gateway_id: GatewayId, *, answer_max_s: float = SEND_MAX_S) -> Self | None:
        """Ask the running process for a hand-over, before there is an event loop. Returns None where no process serves.
        Raises TakeOverFault, also for a refusal."""
        try:
            predecessor = connect_to(path)
        except OSError as error:
            raise TakeOverFault(f"the running process cannot be asked at {path}: {error.strerror}") from error
        if predecessor is None:
            return None
        try:
            return cls(predecessor, *_offer_of(predecessor, gateway_id, answer_max_s))
        except TakeOverFault:
            predecessor.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the predecessor."""
        return self._predecessor.other.pid

    def has(self, role: str, asked: Address) -> bool:
        return any(each.role == role and each.asked == str(asked) for each, _ in self._sockets)

    def listening(self, role: str, asked: Address) -> list[socket.socket]:
        """Sockets of the predecessor that listen at the address `asked`; the caller owns them."""
        taken = [each for each in self._sockets if each[0].role == role and each[0].asked == str(asked)]
        self._sockets = [each for each in self._sockets if each not in taken]
        return [each for _, each in taken]

    def peers_address(self, asked: Address) -> Address:
        """Address at which other gateways know this one: the predecessor's real one where both were told the same
        address."""
        told, real = self._offer.peers
        return parse_address(real) if told == str(asked) else asked

    async def until_released(self, audit: str) -> list[AccountMessage]:
        """Report that all is loaded, and wait for the release. `audit` is the folder of this process's audit chain.
        Returns the budget tokens that running requests hold; none where the predecessor has died, and this process
        starts as after a crash. Raises TakeOverFault."""
        try:
            self._predecessor.send(TakeoverReady(audit))
            said = await self._predecessor.receive(_RELEASED_MAX_S)
        except TimeoutError as error:
            raise TakeOverFault("the running process does not let go") from error
        except CounterpartGone as error:
            if not await asyncio.to_thread(self._predecessor.other.has_ended, SEND_MAX_S):
                raise TakeOverFault("the running process has broken off the hand-over") from error
            return []
        if isinstance(said, TakeoverRefused):
            raise TakeOverFault(f"the running process refuses: {said.reason}")
        if not isinstance(said, Released):
            raise TakeOverFault(f"the running process says {type(said).__name__} where Released is due")
        self.requests_left = 0
        return said.accounts

    def say_serving(self) -> None:
        for _, each in self._sockets:
            each.close()  # the region file has another address
        if self.requests_left is not None:
            with suppress(CounterpartGone):  # the successor owns all by now, whether or not the predecessor lives
                self._predecessor.send(Serving())

    async def follow(self, heir: RemainderReceiver, log: FilteringBoundLogger) -> None:
        """Take messages until the predecessor has sent its last."""
        try:
            while self.requests_left is not None:
                self._take(await self._predecessor.receive(None), heir)
        except (CounterpartGone, TakeOverFault) as error:
            why = str(error)
            log.error("predecessor_lost", reason=why)  # noqa: TRY400 - said
            self.requests_left = None
            self._predecessor.close()
        heir.take_used(UsageMessage([], []))

    def close(self) -> None:
        self._predecessor.close()
        for _, each in self._sockets:
            each.close()

    def describe(self) -> dict[str, object]:
        return {"pid": self.pid, "requests_left": self.requests_left}

    def _take(self, said: FromPredecessor, heir: RemainderReceiver) -> None:
        match said:
            case UsageMessage():
                heir.take_used(said)
            case Audited():
                heir.take_lines([each.encode() for each in said.lines])
            case Left():
                self.requests_left = said.requests
            case Done():
                self.requests_left = None
            case _:
                raise TakeOverFault(f"it says {type(said).__name__} once it has let go")


def _offer_of(
    predecessor: Wire[FromPredecessor], gateway_id: GatewayId, answer_max_s: float
) -> tuple[TakeoverOffer, list[socket.socket]]:
    try:
        predecessor.send(TakeoverHello(VERSION, gateway_id))
        said, sockets = predecessor.receive_sockets(answer_max_s)
    except TimeoutError as error:
        raise TakeOverFault("the running process does not answer: does another take over already?") from error
    except OSError as error:
        raise TakeOverFault(f"the running process cannot be asked: {error}") from error
    if isinstance(said, TakeoverOffer) and len(said.sockets) == len(sockets):
        return said, sockets
    for each in sockets:
        each.close()
    if isinstance(said, TakeoverRefused):
        raise TakeOverFault(f"the running process refuses: {said.reason}")
    raise TakeOverFault("the running process offers nothing that is understood")
