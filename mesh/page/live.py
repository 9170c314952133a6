"""Live content of the page: each watcher is sent the sections that changed since it was last sent any.

Nothing is computed without watchers, and for many of them at most once an interval. Nothing is queued: a slow watcher
misses the states in between, and one that reads nothing for too long is disconnected, and may connect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web
from msgspec import Struct

from mesh.admin_server import as_json, fault, needs
from mesh.operators_config import Role

Sections = Callable[[], Mapping[str, object]]
"""Callback that returns all sections of the page by name; they can be encoded as JSON."""

_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}
_ALIVE = b": alive\n\n"


class LiveSettings(Struct, frozen=True):
    watchers_max: int = 32
    interval_s: float = 0.5
    """Least seconds between two events."""
    alive_s: float = 5.0
    """Most seconds between two messages."""
    stall_s: float = 10.0
    """Seconds after which a watcher that reads nothing is disconnected."""
    lasts_s: float = 300.0
    """Seconds after which a stream ends. A watcher that is still permitted opens another one, so a token that was
    revoked stops working by then."""


class LivePage:
    """Event streams of all watchers."""

    def __init__(self, sections: Sections, settings: LiveSettings | None = None) -> None:
        self.watchers = 0
        self._sections = sections
        self._settings = settings or LiveSettings()
        self._ending = asyncio.Event()
        self._made: dict[str, bytes] = {}
        self._made_s = float("-inf")

    @needs(Role.LOOK)
    async def once(self, _: web.Request) -> web.Response:
        """Send all sections in their current state."""
        return as_json(self._sections())

    @needs(Role.LOOK)
    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Send server-sent events: the first `sections` event has all sections, later ones those that changed."""
        if self.watchers >= self._settings.watchers_max:
            return fault(503, f"{self.watchers} watch already: close a page somewhere")
        self.watchers += 1
        response = web.StreamResponse(headers=_HEADERS)
        try:
            await response.prepare(request)
            await self._tell(response)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the page was closed
        finally:
            self.watchers -= 1
        return response

    async def end(self, _: web.Application) -> None:
        """End all streams, so that the program can stop."""
        self._ending.set()

    async def _tell(self, response: web.StreamResponse) -> None:
        settings, told, told_s = self._settings, dict[str, bytes](), self._now_s
        ends_s = told_s + settings.lasts_s
        while not self._ending.is_set() and self._now_s < ends_s:
            made = self._newest()
            changed = {name: text for name, text in made.items() if told.get(name) != text}
            if changed:
                told, told_s = {**told, **changed}, self._now_s
                await self._write(response, _event(changed))
            elif self._now_s - told_s >= settings.alive_s:
                told_s = self._now_s
                await self._write(response, _ALIVE)
            await self._pause()

    async def _write(self, response: web.StreamResponse, text: bytes) -> None:
        async with asyncio.timeout(self._settings.stall_s):
            await response.write(text)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._settings.interval_s):
                await self._ending.wait()
        except TimeoutError:
            pass

    def _newest(self) -> dict[str, bytes]:
        """Sections, encoded once for all watchers of about the same time."""
        if self._now_s - self._made_s >= self._settings.interval_s / 2:
            self._made = {name: msgspec.json.encode(each) for name, each in self._sections().items()}
            self._made_s = self._now_s
        return self._made

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _event(sections: Mapping[str, bytes]) -> bytes:
    """Event with the sections; their JSON has no line breaks, so that one line of data holds it."""
    pairs = b",".join(msgspec.json.encode(name) + b":" + text for name, text in sections.items())
    return b"event: sections\ndata: {" + pairs + b"}\n\n"


def add_live(app: web.Application, live: LivePage) -> None:
    app.router.add_get("/admin/overview", live.once)
    app.router.add_get("/admin/events", live.watch, allow_head=False)  # a HEAD request makes no sense for a stream
    app.on_shutdown.append(live.end)
