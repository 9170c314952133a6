"""Watch on one host: what its cloud announces is handed in at the gateways, again and again until the host is gone, so
that a gateway that restarts hears it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Never
from urllib.parse import quote

from gateway.features.leaving.metadata import HostEnd, HostMetadata, MetadataFault
from mesh.admin_client import Admin, AdminFault
from mesh.task_group import TaskGroup

GATEWAY_S = 3.0
"""Seconds for one call of a gateway. It answers from what it knows."""
_GONE = (404, 409)
"""Answers of a gateway that does not serve the replica at present."""


class HostWatch:
    """Watch on the replicas of one host."""

    def __init__(
        self,
        metadata: HostMetadata,
        gateways: Sequence[Admin],
        replicas: Sequence[str],
        *,
        lead_s: float,
        wall_s: Callable[[], float],
        say: Callable[[str], object],
    ) -> None:
        """`lead_s`: seconds before an announced end from which on it is handed in. `say` receives lines for operators,
        each only when it differs from the one before on the same matter."""
        self._metadata = metadata
        self._gateways = gateways
        self._replicas = replicas
        self._lead_s = lead_s
        self._wall_s = wall_s
        self._say = say
        self._end: HostEnd | None = None
        """End that the metadata service told last; None: it told of none, or nothing yet."""
        self._news = asyncio.Event()
        """The end has changed since it was handed in."""
        self._said: dict[str, str] = {}
        """Last line on each matter: a replica, or the metadata service."""
        self._accepted: set[str] = set()
        """Replicas of which a gateway knows that they leave."""

    async def run(self, interval_s: float) -> None:
        """Look, and hand in what is known, each with a pause of `interval_s` seconds, until cancelled. A metadata
        service that is slow delays no announcement that is known already."""
        async with TaskGroup() as tasks:
            tasks.create_task(self._look_on(interval_s))
            tasks.create_task(self._hand_in_on(interval_s))

    async def _look_on(self, interval_s: float) -> Never:
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def _hand_in_on(self, interval_s: float) -> Never:
        while True:
            self._news.clear()
            await self.hand_in()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._news.wait()

    async def look(self) -> None:
        """Ask the metadata service once. What it told before stands while it cannot be asked."""
        try:
            end = await self._metadata.look(self._wall_s())
        except MetadataFault as fault:
            self._tell("metadata", str(fault))
            return
        self._tell("metadata", "no end is announced" if end is None else f"{end.what}: this host ends {_time(end)}")
        if end != self._end:
            self._end = end
            self._news.set()

    async def hand_in(self) -> None:
        """Hand in the known end for all replicas at once, or that it is called off or put off."""
        end, now_s = self._end, self._wall_s()
        async with TaskGroup() as tasks:
            for replica in self._replicas:
                if end is None or end.at_s - now_s > self._lead_s:
                    tasks.create_task(self._withdraw(replica))
                elif end.at_s > now_s:
                    tasks.create_task(self._announce(replica, end))

    async def _announce(self, replica: str, end: HostEnd) -> None:
        if await self._ask("POST", replica, {"at": _time(end)}):
            self._accepted.add(replica)
            self._tell(replica, f"{replica} leaves by {_time(end)}")

    async def _withdraw(self, replica: str) -> None:
        if replica in self._accepted and await self._ask("DELETE", replica):
            self._accepted.discard(replica)
            self._tell(replica, f"{replica} stays")

    async def _ask(self, method: str, replica: str, body: object | None = None) -> bool:
        """Ask all gateways at once until one accepts; it is the one that serves the replica."""
        path = f"/admin/replicas/{quote(replica, safe='')}/leave-by"
        async with TaskGroup() as tasks:
            asked = [tasks.create_task(_refusal(each, method, path, body)) for each in self._gateways]
            for answered in asyncio.as_completed(asked):
                if await answered is None:
                    for each in asked:
                        each.cancel()
                    return True
        refusals = [told for each in asked if (told := each.result()) is not None]
        _, why = min(refusals, key=lambda told: told[0], default=(True, "no gateway is named"))
        self._tell(replica, f"{replica}: {why}")
        return False

    def _tell(self, matter: str, line: str) -> None:
        if self._said.get(matter) != line:
            self._said[matter] = line
            self._say(line)


async def _refusal(gateway: Admin, method: str, path: str, body: object | None) -> tuple[bool, str] | None:
    """Return why a gateway does not accept, and before it whether that is as it does not serve the replica; None: it
    accepts."""
    try:
        answer = await gateway.answer(method, path, body)
    except AdminFault as fault:
        return False, fault.message
    return None if answer.status == 200 else (answer.status in _GONE, f"{gateway.url}: {answer.fault}")


def _time(end: HostEnd) -> str:
    return datetime.fromtimestamp(end.at_s, UTC).isoformat(timespec="milliseconds")
