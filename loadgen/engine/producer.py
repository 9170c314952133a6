"""Producer side of a hand-off: KV caches that a prefill worker keeps, and how decode workers find, renew and free them.

Emulated engines use this HTTP interface among themselves in place of a side channel; it is not meant for other clients.
No keys or values are transferred, since there are none.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import msgspec
from aiohttp import web

from gateway.core.vocabulary import Connector
from loadgen.engine.driver import EngineDriver
from loadgen.engine.handoff import EngineDied, HandoffConfig

PREFIX = "/emulated/kv"
_RENEWED_SHARE = 2 / 3
"""Length of a renewal, as a share of the first lease."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CacheOffer:
    """Prompt that is being computed for a decode worker, or has been."""

    request_id: str
    engine_id: str
    prompt_tokens: int
    digest: str


class Wish(msgspec.Struct, frozen=True):
    """Body of a request to a prefill worker: `find` waits up to `waits_s` for the KV cache."""

    key: str
    engine_id: str | None = None
    waits_s: float = 0.0


class FoundCache(msgspec.Struct, frozen=True):
    prompt_tokens: int
    digest: str


class Renewal(msgspec.Struct, frozen=True):
    keys: list[str]


class Producer:
    """Offers of one engine by key. It holds running requests and kept KV caches only."""

    def __init__(self, config: HandoffConfig, driver: EngineDriver, *, ranks: int, time_scale: float) -> None:
        self.late_notifications = 0
        """Attempts to free a KV cache after its lease was over."""
        self.heartbeats = 0
        self.engine_ids = [str(uuid4()) for _ in range(ranks)]
        self._config = config
        self._driver = driver
        self._time_scale = time_scale
        self._offers: dict[str, CacheOffer] = {}
        self._keys: dict[str, str] = {}
        """Keys of offers by request id."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def lease_ns(self) -> int:
        return int(self._config.kept_s * _NS)

    def offer(self, key: str, offer: CacheOffer) -> None:
        """Register an offer, before the prompt is computed. Raises EngineDied if an SGLang room is in use, as a real
        scheduler does."""
        if key in self._offers and self._config.connector is Connector.SGLANG:
            raise EngineDied(f"the bootstrap room {key} is in use")
        self._offers[key] = offer
        self._keys[offer.request_id] = key

    def gone(self, request_id: str) -> None:
        """Remove the offer of a request that has ended, unless its blocks are kept."""
        if not self._driver.keeps(request_id):
            key = self._keys.pop(request_id, None)
            if key is not None:
                self._offers.pop(key, None)
        self._tell()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{PREFIX}/find", self._find),
            web.post(f"{PREFIX}/renew", self._renew),
            web.post(f"{PREFIX}/free", self._free),
            web.get("/query", self._query),
        ]

    async def _query(self, _http: web.Request) -> web.Response:
        """Addresses of the ranks, in the form of Mooncake's bootstrap server."""
        ranks = {
            str(rank): {"engine_id": engine_id, "worker_addr": {"0": {"0": f"tcp://{rank}"}}}
            for rank, engine_id in enumerate(self.engine_ids)
        }
        return _json(ranks)

    async def _find(self, http: web.Request) -> web.Response:
        wish = msgspec.json.decode(await http.read(), type=Wish)
        offer = self._kept(wish.key)
        with suppress(TimeoutError):
            async with asyncio.timeout(wish.waits_s * self._time_scale):
                while offer is None and wish.waits_s:
                    await self._changed.wait()
                    offer = self._kept(wish.key)
        if offer is None:
            raise web.HTTPNotFound
        if wish.engine_id is not None and wish.engine_id != offer.engine_id:
            raise web.HTTPConflict
        return _json(FoundCache(offer.prompt_tokens, offer.digest))

    async def _renew(self, http: web.Request) -> web.Response:
        for key in msgspec.json.decode(await http.read(), type=Renewal).keys:
            self.heartbeats += 1
            offer = self._offers.get(key)
            if offer is not None:
                self._driver.renew(offer.request_id, int(self.lease_ns * _RENEWED_SHARE))
        return web.Response()

    async def _free(self, http: web.Request) -> web.Response:
        offer = self._offers.get(msgspec.json.decode(await http.read(), type=Wish).key)
        if offer is None or not self._driver.let_go(offer.request_id):
            self.late_notifications += 1
            raise web.HTTPNotFound
        return web.Response()

    def _kept(self, key: str) -> CacheOffer | None:
        self._driver.load()
        offer = self._offers.get(key)
        return offer if offer is not None and self._driver.keeps(offer.request_id) else None

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
