"""Places of lines, which the batches of a gateway share equally. It reads no clock and does no I/O."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core.vocabulary import TenantName
from gateway.features.batches.state import ClientBatch


class LinePlaces:
    """Places of lines. A free one goes to the batch that holds the fewest, and of several to the tenant that does."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._of_batches: Counter[str] = Counter()
        self._of_tenants: Counter[TenantName] = Counter()
        self._waiting: dict[tuple[str, TenantName], deque[asyncio.Future[None]]] = {}
        """Lines without a place in order, by batch and its tenant."""

    @asynccontextmanager
    async def one_for(self, batch: ClientBatch) -> AsyncIterator[None]:
        """Wait for a place for a line of a batch, and hold it meanwhile."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((batch.id, batch.tenant), deque()).append(granted)
        self._grant()
        try:
            await granted
            yield
        finally:
            if not granted.cancelled():
                self._count(batch.id, batch.tenant, -1)
                self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            batch_id, tenant = chosen = min(
                self._waiting, key=lambda each: (self._of_batches[each[0]], self._of_tenants[each[1]])
            )
            granted = self._waiting[chosen].popleft()
            if not self._waiting[chosen]:
                del self._waiting[chosen]
            if not granted.done():  # the line may have ended meanwhile
                granted.set_result(None)
                self._count(batch_id, tenant, 1)

    def _count(self, batch_id: str, tenant: TenantName, places: int) -> None:
        self._free -= places
        self._of_batches[batch_id] += places
        self._of_tenants[tenant] += places
        if not self._of_batches[batch_id]:
            del self._of_batches[batch_id]
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
