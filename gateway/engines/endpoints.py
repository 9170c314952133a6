"""Where the replicas we own are reached, as the newest assignment says. It opens no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.config import Dialect, ReplicaConfig
from gateway.core.vocabulary import Place, ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaEndpoint:
    replica_id: ReplicaId
    place: Place
    url: str
    """Without a slash at the end; the path of each API call is added to it."""
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_config(cls, config: ReplicaConfig) -> ReplicaEndpoint:
        return cls(config.spec.replica_id, config.spec.place, config.url, config.dialect, config.api_key)

    def authorization(self) -> dict[str, str]:
        """The gateway's own key for this engine; a client's key never gets this far."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


class ReplicaEndpoints:
    """The current set. Replaced whole; whoever follows it waits for a change."""

    def __init__(self, endpoints: Iterable[ReplicaEndpoint] = ()) -> None:
        self._by_id = {endpoint.replica_id: endpoint for endpoint in endpoints}
        self._changed = asyncio.Event()

    def get(self, replica_id: ReplicaId) -> ReplicaEndpoint | None:
        return self._by_id.get(replica_id)

    def ids(self) -> list[ReplicaId]:
        return list(self._by_id)

    def replace(self, endpoints: Iterable[ReplicaEndpoint]) -> None:
        self._by_id = {endpoint.replica_id: endpoint for endpoint in endpoints}
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_replaced(self) -> None:
        await self._changed.wait()
