"""Watch on one host: what its cloud announces is handed in at the gateways, again and again until the host is gone, so
that a gateway that restarts hears it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Never
from urllib.parse import quote

from gateway.features.leaving.metadata import HostEnd, HostMetadata, MetadataFault
from mesh.admin_client import Admin, AdminFault

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
        self._said: dict[str, str] = {}
        """Last line on each matter: a replica, or the metadata service."""
        self._accepted: set[str] = set()
        """Replicas of which a gateway knows that they leave."""

    async def run(self, interval_s: float) -> Never:
        """Look until cancelled, with a pause of `interval_s` seconds."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Look once, and hand in what is announced, or that it is called off."""
        now_s = self._wall_s()
        try:
            end = await self._metadata.look(now_s)
        except MetadataFault as fault:
            self._tell("metadata", str(fault))
            return
        self._tell("metadata", "no end is announced" if end is None else f"{end.what}: this host ends {_time(end)}")
        for replica in self._replicas:
            if end is None:
                await self._withdraw(replica)
            elif 0 < end.at_s - now_s <= self._lead_s:
                await self._announce(replica, end)

    async def _announce(self, replica: str, end: HostEnd) -> None:
        if await self._ask("POST", replica, {"at": _time(end)}):
            self._accepted.add(replica)
            self._tell(replica, f"{replica} leaves by {_time(end)}")

    async def _withdraw(self, replica: str) -> None:
        if replica in self._accepted and await self._ask("DELETE", replica):
            self._accepted.discard(replica)
            self._tell(replica, f"{replica} stays")

    async def _ask(self, method: str, replica: str, body: object | None = None) -> bool:
        """Ask the gateways in turn until one accepts; it is the one that serves the replica."""
        why = "no gateway serves it"
        for gateway in self._gateways:
            try:
                answer = await gateway.answer(method, f"/admin/replicas/{quote(replica, safe='')}/leave-by", body)
            except AdminFault as fault:
                why = fault.message
                continue
            if answer.status == 200:
                return True
            why = why if answer.status in _GONE and len(self._gateways) > 1 else f"{gateway.url}: {answer.fault}"
        self._tell(replica, f"{replica}: {why}")
        return False

    def _tell(self, matter: str, line: str) -> None:
        if self._said.get(matter) != line:
            self._said[matter] = line
            self._say(line)


def _time(end: HostEnd) -> str:
    return datetime.fromtimestamp(end.at_s, UTC).isoformat(timespec="milliseconds")
