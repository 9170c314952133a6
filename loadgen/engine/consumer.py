"""Consumer side of a hand-off: a decode worker fetches the KV caches of prompts computed by prefill workers, renews
their leases while requests wait for room, and frees them when they are fetched, refused or not needed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from loadgen.engine.driver import EngineDriver
from loadgen.engine.handoff import Fetch, HandoffConfig
from loadgen.engine.model import Fetching
from loadgen.engine.producer import PREFIX, FoundCache, Renewal, Wish

_ANSWER_S = 5.0
_HEARTBEATS_A_LEASE = 6
_REMEMBERED_MAX = 4_096


@dataclass(frozen=True, slots=True)
class WantedCache:
    """Remote KV cache that a local request needs."""

    fetch: Fetch
    prompt_tokens: int
    digest: str


class Consumer:
    """Fetcher of one engine. Its book holds only running requests whose KV cache has not been fetched."""

    def __init__(
        self,
        config: HandoffConfig,
        driver: EngineDriver,
        *,
        block_tokens: int,
        time_scale: float,
        die: Callable[[str], None],
    ) -> None:
        self.stale_reads = 0
        """Fetches of a KV cache that was not kept any more: a real engine may read whatever the blocks hold then."""
        self.differing_prompts = 0
        """Fetches that found another prompt's KV cache: a real engine would answer that other prompt."""
        self._config = config
        self._driver = driver
        self._block_tokens = block_tokens
        self._time_scale = time_scale
        self._die = die
        self._wanted: dict[str, WantedCache] = {}
        self._fetched: OrderedDict[str, None] = OrderedDict()
        """Keys of recent fetches, the latest last."""
        self._tasks: asyncio.TaskGroup | None = None
        self._session: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        return len(self._wanted)

    async def run(self) -> None:
        """Run fetches and renew leases until cancelled."""
        limit = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=limit) as self._session, asyncio.TaskGroup() as self._tasks:
            while True:
                await asyncio.sleep(max(0.05, self._config.lease_s * self._time_scale / _HEARTBEATS_A_LEASE))
                for address, keys in self._waiting_by_address().items():
                    self._start(self._post(address, "renew", Renewal(keys)))

    def want(self, request_id: str, wanted: WantedCache) -> None:
        """Register the KV cache that a request needs, before the request is submitted."""
        self._wanted[request_id] = wanted

    def fetch(self, fetching: Fetching) -> None:
        """Start the fetch of a request that has blocks reserved for it."""
        wanted = self._wanted[fetching.request_id]
        self._start(self._bring(fetching, wanted))

    def gone(self, request_id: str) -> None:
        """Remove an ended request; if its KV cache was never fetched, free it at the prefill worker."""
        wanted = self._wanted.pop(request_id, None)
        if wanted is not None:
            self.refuse(wanted.fetch)

    def refuse(self, fetch: Fetch) -> None:
        """Free the KV cache kept for a request that is refused, or that has been fetched."""
        self._start(self._post(fetch.address, "free", Wish(fetch.key)))

    def _waiting_by_address(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for wanted in self._wanted.values():
            found.setdefault(wanted.fetch.address, []).append(wanted.fetch.key)
        return found

    async def _bring(self, fetching: Fetching, wanted: WantedCache) -> None:
        fetch = wanted.fetch
        status, body = await self._post(
            fetch.address, "find", Wish(fetch.key, fetch.engine_id, fetch.waits_s), fetch.waits_s * self._time_scale
        )
        if self._wanted.get(fetching.request_id) is not wanted:
            return
        if status == 404 and self._is_all_here(fetching, wanted):
            self._arrived(fetching.request_id)
        elif status != 200:
            self.stale_reads += status == 404
            self._not_to_be_had(fetching.request_id)
        else:
            await self._carry(fetching, wanted, msgspec.json.decode(body, type=FoundCache))

    def _is_all_here(self, fetching: Fetching, wanted: WantedCache) -> bool:
        """True if the prompt was fetched before and its full blocks are still in the cache."""
        full = (wanted.prompt_tokens - 1) // self._block_tokens * self._block_tokens
        return wanted.fetch.key in self._fetched and fetching.cached_tokens >= full

    async def _carry(self, fetching: Fetching, wanted: WantedCache, found: FoundCache) -> None:
        if self._blocks(wanted.prompt_tokens) > self._blocks(found.prompt_tokens):
            self._die("assert num_decode_blocks <= len(prefill_group)")
            return
        if wanted.digest != found.digest:
            self.differing_prompts += 1
            self._not_to_be_had(fetching.request_id)
            return
        tokens = wanted.prompt_tokens - fetching.cached_tokens
        await asyncio.sleep(self._config.transfer_s_of(tokens) * self._time_scale)
        if self._wanted.get(fetching.request_id) is not wanted:
            return
        self._fetched[wanted.fetch.key] = None
        while len(self._fetched) > _REMEMBERED_MAX:
            self._fetched.popitem(last=False)
        self.refuse(wanted.fetch)
        self._arrived(fetching.request_id)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _arrived(self, request_id: str) -> None:
        del self._wanted[request_id]
        self._driver.deliver(request_id, has_come=True)

    def _not_to_be_had(self, request_id: str) -> None:
        if self._config.recomputes:
            self.gone(request_id)
            self._driver.deliver(request_id, has_come=False)
        else:
            self._driver.fail(request_id)

    async def _post(self, address: str, verb: str, content: object, longer_s: float = 0.0) -> tuple[int, bytes]:
        """Status and body of the answer; status 0 when there is none."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S + longer_s)
        body = msgspec.json.encode(content)
        with suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
            async with self._session.post(f"{address}{PREFIX}/{verb}", data=body, timeout=timeout) as response:
                return response.status, await response.read()
        return 0, b""

    def _start(self, todo: Coroutine[Any, Any, object]) -> None:
        assert self._tasks is not None, "the engine runs"
        self._tasks.create_task(todo)
