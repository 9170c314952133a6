"""Processes of the demo that can be killed and restarted, gateways above all, and functions that wait until processes
are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import aiohttp

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.demo.layout import Seat, url_at
from loadgen.demo.processes import Child, DemoFailure, log_tail

_READY_S = 30.0
_POLL_S = 0.1
_ANSWER_S = 2.0
NewSession = Callable[[], aiohttp.ClientSession]


class RestartedProcess:
    """One process of a running mesh."""

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[Child]],
        ready_url: str,
        stack: AsyncExitStack,
        new_session: NewSession = aiohttp.ClientSession,
    ) -> None:
        """Describe the process: `ready_url` answers 200 once it is ready, and what is started stops when `stack`
        closes. `new_session` makes sessions that reach its addresses."""
        self.new_session = new_session
        self._start = start
        self._ready_url = ready_url
        self._stack = stack
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        assert self._child is not None, "it was started"
        return self._child

    async def start(self) -> None:
        """Start the process; also restarts it after it was killed."""
        self._child = await self._stack.enter_async_context(self._start())

    async def until_ready(self) -> None:
        """Wait until the process is ready. Raises DemoFailure on time-out."""
        await until_ready(self.child, [self._ready_url], self.new_session)


class Member(RestartedProcess):
    """One gateway of a running mesh."""

    def __init__(
        self,
        seat: Seat,
        start: Callable[[], AbstractAsyncContextManager[Child]],
        stack: AsyncExitStack,
        new_session: NewSession = aiohttp.ClientSession,
    ) -> None:
        self.gateway_id: GatewayId = seat.gateway_id
        self.region: RegionName = seat.region.name
        self.host = seat.ports.host
        self.url = url_at(seat.ports.http, seat.ports.host)
        self.admin = url_at(seat.ports.admin, seat.ports.admin_host)
        super().__init__(start, f"{self.admin}/ready", stack, new_session)

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any] | None:
        """State reported by the gateway's admin API; None while it does not answer."""
        return await state_at(session, self.admin)


async def until_ready(child: Child, urls: Iterable[str], new_session: NewSession = aiohttp.ClientSession) -> None:
    """Wait until all URLs answer 200. Raises DemoFailure on time-out."""
    try:
        async with asyncio.timeout(_READY_S), new_session() as session:
            for url in urls:
                while not await _answers(session, url):  # noqa: ASYNC110 - another process, which sends no event
                    await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoFailure(f"{child.name} was not ready after {_READY_S:.0f} s\n{log_tail(child.log)}") from None


async def until_attached(
    controller: Child, admin: str, gateways: Collection[GatewayId], new_session: NewSession = aiohttp.ClientSession
) -> None:
    """Wait until the controller reports all gateways as up, each has applied its instructions, and the name leads to
    each."""
    try:
        async with asyncio.timeout(_READY_S), new_session() as session:
            while not _all_attached(await state_at(session, admin), gateways):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        reason = f"gateways were not attached after {_READY_S:.0f} s"
        raise DemoFailure(f"{controller.name}: {reason}\n{log_tail(controller.log)}") from None


async def until_met(members: Collection[Member]) -> None:
    """Wait until each gateway has heard from every peer that a replica is available there: a request sent earlier is
    served in its own region even if replicas elsewhere are idle."""
    try:
        async with asyncio.timeout(_READY_S), AsyncExitStack() as stack:
            for member in members:
                session = await stack.enter_async_context(member.new_session())
                while not _has_met_all(await member.state(session)):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
    except TimeoutError:
        tails = "\n".join(log_tail(member.child.log) for member in members)
        raise DemoFailure(f"gateways had not heard of each other after {_READY_S:.0f} s\n{tails}") from None


def _has_met_all(state: dict[str, Any] | None) -> bool:
    return state is not None and all(
        peer["usable"] and any(each["available"] for each in peer["models"]) for peer in state["peers"]
    )


async def state_at(session: aiohttp.ClientSession, admin: str) -> dict[str, Any] | None:
    """State reported by the admin API of a gateway or controller; None while it does not answer."""
    try:
        async with session.get(f"{admin}/admin/state", timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as response:
            state: dict[str, Any] = await response.json()
            return state if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _all_attached(state: dict[str, Any] | None, wanted: Collection[GatewayId]) -> bool:
    if state is None:
        return False
    well = [
        each["id"]
        for each in state["gateways"]
        if each["condition"] == "up" and each["attached"] and each["taken"] == each["pushed"] and each["replicas_owned"]
    ]
    named = {name for area in state["names"] for name in area["gateways"]}
    return set(wanted) <= set(well) and set(wanted) <= named


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
