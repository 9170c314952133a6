"""Probes the health of each registered gateway at intervals, and reports it to the core. It judges no gateway."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractResolver
from msgspec import Struct

from controller.config import GatewayProbeConfig
from controller.core.events import Event, GatewayProbed
from controller.registry import Registry
from gateway.core.vocabulary import GatewayId
from mesh.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
_LOOK_S = 1.0
"""Longest time until a new gateway is probed."""
DETAIL_LENGTH_MAX = 200
_ADDRESSES_AT_ONCE = 1 << 16
"""Addresses of a host that one attempt covers, which is all of them: a failed connection is not tried again with only
some, so that its error holds for each."""


class _Fault(Struct, frozen=True):
    """Reason why a gateway is not well."""

    detail: str
    was_refused: bool = False


class _Target:
    """One gateway and its present health URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kick = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class GatewayProber:
    """Probes each gateway in a task of its own: one that hangs delays no other."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        is_attached: Callable[[GatewayId], bool],
        submit: Callable[[Event], None],
        config: GatewayProbeConfig,
        *,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`resolver` resolves the gateways' host names; default: the system's."""
        self._resolver = resolver
        self._registry = registry
        self._is_attached = is_attached
        self._submit = submit
        self._config = config
        self._tls = _context(config)
        self._targets: dict[GatewayId, _Target] = {}
        self._changed = asyncio.Event()

    def configure(self, config: GatewayProbeConfig) -> None:
        """Put a configuration in force. Raises OSError where the CA file cannot be read, and has then changed
        nothing."""
        self._tls = _context(config)
        self._config = config
        self.look()

    def look(self) -> None:
        """Note that the registered or attached gateways have changed: those without a stream are probed at once."""
        self._changed.set()
        for gateway_id, target in self._targets.items():
            if not self._is_attached(gateway_id):
                target.kick.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        self._targets.clear()
        connector = aiohttp.TCPConnector(
            limit=0,
            force_close=True,  # a kept connection does not show that there is a listener
            interleave=_ADDRESSES_AT_ONCE,
            resolver=self._resolver,
        )
        async with aiohttp.ClientSession(connector=connector) as session, TaskGroup() as tasks:
            while True:
                self._follow(session, tasks)
                self._changed.clear()
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def _follow(self, session: aiohttp.ClientSession, tasks: TaskGroup) -> None:
        wanted = {each.gateway_id: each.announcement.health_url for each in self._registry().gateways.values()}
        for gateway_id in [each for each, target in self._targets.items() if wanted.get(each) != target.url]:
            task = self._targets.pop(gateway_id).task
            assert task is not None, "it runs as long as it is a target"
            task.cancel()
        for gateway_id in wanted.keys() - self._targets.keys():
            target = self._targets[gateway_id] = _Target(wanted[gateway_id])
            target.task = tasks.create_task(self._ask_again_and_again(session, gateway_id, target))

    async def _ask_again_and_again(
        self, session: aiohttp.ClientSession, gateway_id: GatewayId, target: _Target
    ) -> None:
        """Probe a gateway at each interval, whether or not the last probe has been answered: a gateway that does not
        answer is noticed after one time-out, not after several in a row."""
        async with TaskGroup() as probes:
            while True:
                target.kick.clear()
                if target.url:
                    probes.create_task(self._probe(session, gateway_id, target.url))
                elif not self._is_attached(gateway_id):
                    self._submit(GatewayProbed(gateway_id, healthy=False, detail="it names no URL for its health"))
                try:
                    async with asyncio.timeout(self._config.interval_ns / _SECOND_NS):
                        await target.kick.wait()
                except TimeoutError:
                    pass

    async def _probe(self, session: aiohttp.ClientSession, gateway_id: GatewayId, url: str) -> None:
        self._submit(_probed(gateway_id, await self._ask(session, url)))

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> _Fault | None:
        """Probe a gateway once; None when it is well."""
        tls = self._tls if self._tls is not None else True
        try:
            async with (
                asyncio.timeout(self._config.timeout_ns / _SECOND_NS),
                session.get(url, allow_redirects=False, ssl=tls) as answer,
            ):
                return None if answer.status == 200 else _Fault(f"it answers {answer.status}")
        except TimeoutError:
            return _Fault("it does not answer in time")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            detail = (str(error) or type(error).__name__)[:DETAIL_LENGTH_MAX]
            return _Fault(detail, was_refused=_was_refused(error))


def _probed(gateway_id: GatewayId, fault: _Fault | None) -> GatewayProbed:
    if fault is None:
        return GatewayProbed(gateway_id, healthy=True)
    return GatewayProbed(gateway_id, healthy=False, detail=fault.detail, was_refused=fault.was_refused)


def _was_refused(error: Exception) -> bool:
    """Return whether the host refused the connection at each of its addresses: an unreachable one may have a
    listener."""
    return isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == errno.ECONNREFUSED


def _context(config: GatewayProbeConfig) -> ssl.SSLContext | None:
    return None if config.ca_file is None else ssl.create_default_context(cafile=config.ca_file)
