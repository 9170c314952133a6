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
APART_MIN_NS = 100_000_000
"""Shortest interval between the starts of two probes of one gateway: whatever calls for them at once, a gateway in
trouble is not flooded, and failures in a row are not of one moment."""
DETAIL_LENGTH_MAX = 200
_ADDRESSES_AT_ONCE = 1 << 16
"""Addresses of a host that one attempt covers, which is all of them: a failed connection is not tried again with only
some, so that its error holds for each."""


class _Fault(Struct, frozen=True):
    """Reason why a gateway is not well."""

    detail: str
    was_refused: bool = False


class ProbePace:
    """Starts and results of one gateway's probes: how many may run at once, how soon the next may start, and which
    results are outdated. Times are arguments."""

    def __init__(self) -> None:
        self._started = 0
        """Number of the last probe."""
        self._started_ns: int | None = None
        self._running = 0
        self._newest = 0
        """Number of the newest probe with a result."""

    def wait_ns(self, now_ns: int, config: GatewayProbeConfig) -> int:
        """Nanoseconds after which to ask again; 0: a probe may start. No more run at once than start at intervals
        within a time-out, and one that is urgent starts no sooner than `APART_MIN_NS` after the last."""
        apart_ns = min(APART_MIN_NS, config.interval_ns)
        if self._running >= -(-config.timeout_ns // config.interval_ns):
            return apart_ns
        return 0 if self._started_ns is None else max(0, self._started_ns + apart_ns - now_ns)

    def start(self, now_ns: int) -> int:
        """Note that a probe starts. Returns its number."""
        self._started += 1
        self._started_ns = now_ns
        self._running += 1
        return self._started

    def end(self) -> None:
        self._running -= 1

    def is_news(self, number: int) -> bool:
        """Take in that a probe has a result. Returns False if a later one had its result before: what an older one
        found may be over."""
        if number < self._newest:
            return False
        self._newest = number
        return True


class _Target:
    """One gateway and its present health URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kick = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.pace = ProbePace()


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
        loop = asyncio.get_running_loop()
        async with TaskGroup() as probes:
            while True:
                now_ns = round(loop.time() * _SECOND_NS)
                if wait_ns := target.pace.wait_ns(now_ns, self._config):
                    await asyncio.sleep(wait_ns / _SECOND_NS)
                    continue
                target.kick.clear()
                number = target.pace.start(now_ns)
                probes.create_task(self._probe(session, gateway_id, target, number))
                try:
                    async with asyncio.timeout(self._config.interval_ns / _SECOND_NS):
                        await target.kick.wait()
                except TimeoutError:
                    pass

    async def _probe(self, session: aiohttp.ClientSession, gateway_id: GatewayId, target: _Target, number: int) -> None:
        try:
            if target.url:
                fault = await self._ask(session, target.url)
            elif self._is_attached(gateway_id):
                return
            else:
                fault = _Fault("it names no URL for its health")
        finally:
            target.pace.end()
        if target.pace.is_news(number):
            self._submit(_probed(gateway_id, fault))

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
