"""Asks every replica how busy it is, again and again, and tells the core in batches. It places nothing.

Each replica has a loop of its own; a loop that fails is started again after a pause and counted, and ends no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from gateway.clock import Clock
from gateway.core.events import ReplicasObserved
from gateway.core.vocabulary import ReplicaId, ReplicaObservation
from gateway.engines.client import new_session
from gateway.engines.dialects import PROBES, BadProbe, Reading
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints

_SECOND_NS = 1_000_000_000
_PAGE_BYTES_MAX = 8 << 20
_IDLE_CONNECTION_MIN_S = 2.0


@dataclass(frozen=True, slots=True)
class ProberSettings:
    interval_ns: int = 100_000_000
    timeout_ns: int = _SECOND_NS
    timeouts_max: int = 3
    """Slow is busy, not dead: some engines answer probes between two steps. This many in a row are dead."""
    batch_s: float = 0.002
    """Observations that come in within this time reach the core together."""
    restart_min_s: float = 0.1
    restart_max_s: float = 30.0


class Prober:
    """Follows the endpoints as they come and go."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        settings: ProberSettings,
        submit: Callable[[ReplicasObserved], None],
        on_restart: Callable[[ReplicaId, Exception], None] | None = None,
    ) -> None:
        self.restarts: Counter[ReplicaId] = Counter()
        """How often a replica's loop failed by our own fault."""
        self._endpoints = endpoints
        self._clock = clock
        self._settings = settings
        self._submit = submit
        self._on_restart = on_restart
        self._gathered: list[ReplicaObservation] = []
        self._telling: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until cancelled."""
        idle_s = max(_IDLE_CONNECTION_MIN_S, 2 * self._settings.interval_ns / _SECOND_NS)
        try:
            async with new_session(idle_s) as session, asyncio.TaskGroup() as tasks:
                await self._follow_endpoints(session, tasks)
        finally:
            if self._telling is not None:
                self._telling.cancel()

    async def _follow_endpoints(self, session: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        running: dict[ReplicaId, asyncio.Task[None]] = {}
        while True:
            running = {replica_id: task for replica_id, task in running.items() if not task.done()}
            for replica_id in self._endpoints.ids():
                if replica_id not in running:
                    running[replica_id] = tasks.create_task(self._keep_probing(session, replica_id))
            await self._endpoints.until_replaced()

    async def _keep_probing(self, session: aiohttp.ClientSession, replica_id: ReplicaId) -> None:
        """Ends when the replica is no longer ours."""
        pause_s = self._settings.restart_min_s
        while self._endpoints.get(replica_id) is not None:
            started_ns = self._clock.now_ns()
            try:
                await self._probe_while_ours(session, replica_id)
            except Exception as error:  # noqa: BLE001 - a fault of ours in one loop must not end the others
                self.restarts[replica_id] += 1
                if self._on_restart is not None:
                    self._on_restart(replica_id, error)
                if self._clock.now_ns() - started_ns > self._settings.restart_max_s * _SECOND_NS:
                    pause_s = self._settings.restart_min_s
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.restart_max_s)

    async def _probe_while_ours(self, session: aiohttp.ClientSession, replica_id: ReplicaId) -> None:
        """One probe at a time; one that takes longer than the interval puts off the next."""
        timeouts_in_row = 0
        while (endpoint := self._endpoints.get(replica_id)) is not None:
            sent_ns = self._clock.now_ns()
            try:
                self._gather(await self._probe(session, endpoint, sent_ns))
                timeouts_in_row = 0
            except TimeoutError:
                timeouts_in_row += 1
                if timeouts_in_row >= self._settings.timeouts_max:
                    self._gather(_unhealthy(replica_id, sent_ns, f"{timeouts_in_row} probes in a row took too long"))
            next_ns = sent_ns + self._settings.interval_ns
            await asyncio.sleep(max(0.0, (next_ns - self._clock.now_ns()) / _SECOND_NS))

    async def _probe(
        self, session: aiohttp.ClientSession, endpoint: ReplicaEndpoint, sent_ns: int
    ) -> ReplicaObservation:
        """Raises TimeoutError: a slow answer says nothing either way."""
        try:
            async with asyncio.timeout(self._settings.timeout_ns / _SECOND_NS):
                reading = await _read(session, endpoint)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, ValueError, BadProbe) as error:
            return _unhealthy(endpoint.replica_id, sent_ns, f"{type(error).__name__}: {error}")
        return ReplicaObservation(
            endpoint.replica_id,
            sent_ns,
            healthy=True,
            running=reading.running,
            waiting=reading.waiting,
            kv_usage=reading.kv_usage,
        )

    def _gather(self, observation: ReplicaObservation) -> None:
        if not self._gathered:
            self._telling = asyncio.get_running_loop().call_later(self._settings.batch_s, self._tell)
        self._gathered.append(observation)

    def _tell(self) -> None:
        observations, self._gathered = tuple(self._gathered), []
        self._submit(ReplicasObserved(observations))


def _unhealthy(replica_id: ReplicaId, sent_ns: int, detail: str) -> ReplicaObservation:
    return ReplicaObservation(replica_id, sent_ns, healthy=False, detail=detail)


async def _read(session: aiohttp.ClientSession, endpoint: ReplicaEndpoint) -> Reading:
    probe = PROBES[endpoint.dialect]
    headers = {"accept-encoding": "identity", **endpoint.authorization()}
    response = await session.get(endpoint.url + probe.path, headers=headers, max_redirects=2)
    try:
        if response.status != 200:
            raise BadProbe(f"status {response.status}")
        return probe.read(await _read_page(response))
    finally:
        response.close()


async def _read_page(response: aiohttp.ClientResponse) -> bytes:
    page = b""
    while data := await response.content.readany():
        page += data
        if len(page) > _PAGE_BYTES_MAX:
            raise BadProbe(f"the page is larger than {_PAGE_BYTES_MAX} bytes")
    return page
