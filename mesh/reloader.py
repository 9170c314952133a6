"""Reloads changed files while a program runs: on a signal, or when a watched file has changed and come to rest.

Each part of the program registers what it can reload. A part that refuses what it finds keeps what it had; a reload
ends neither a request nor the process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock
from mesh.problems import RefusedFiles

Callback = Callable[[], Awaitable[None] | None]
"""Callback that reads and checks everything first, then puts it in force. Raises ReloadRefused, and has then changed
nothing."""
Files = Callable[[], Iterable[Path]]
_MILLISECOND_NS = 1_000_000
_Print = tuple[int, ...] | None
"""Modification stamp of a file; None for one that is missing."""


class ReloadRefused(Exception):
    """The files cannot be used; the message has one line for each fault. What was in force stays in force."""


class _Part(Struct):
    name: str
    callback: Callback
    files: Files
    seen: dict[Path, _Print] = field(default_factory=dict)
    """Stamps at the last look."""
    loaded: dict[Path, _Print] = field(default_factory=dict)
    """Stamps when the part was last read."""
    refused: RefusedFiles | None = None
    """Last refusal; None while what was read last is in force."""


class Reloader:
    """Registry of all parts that can be reloaded. Parts are read in the order in which they were added."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        clock: Clock,
        *,
        watch_s: float | None = None,
        on_reload: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Configure the watch. `watch_s` is the pause between two looks at the files; None watches none. `on_reload` is
        called with each part's name and whether what it read is in force."""
        self._log = log
        self._clock = clock
        self._watch_s = watch_s
        self._on_reload = on_reload
        self._parts: dict[str, _Part] = {}
        self._asked = asyncio.Event()

    def add(self, name: str, callback: Callback, files: Files = tuple) -> None:
        """Register a part. A change of one of its `files` reloads it alone; a request reloads every part."""
        assert name not in self._parts, f"{name} is registered already"
        part = _Part(name, callback, files)
        part.loaded = part.seen = _prints(part)
        self._parts[name] = part

    def describe(self) -> list[RefusedFiles]:
        """Refusals of parts of which the files on disk are not in force, for operators."""
        return [part.refused for part in self._parts.values() if part.refused is not None]

    def request(self) -> None:
        """Reload every part soon; for a signal handler."""
        self._asked.set()

    async def run(self) -> None:
        """Watch and reload until cancelled."""
        while True:
            if await self._is_asked():
                self._asked.clear()
                await self.reload()
            else:
                await self.look()

    async def reload(self) -> list[str]:
        """Reload every part, changed or not. Returns the names of those that refused."""
        self._log.info("reload_requested", parts=list(self._parts))
        return [part.name for part in tuple(self._parts.values()) if not await self._read(part)]

    async def look(self) -> None:
        """Reload the parts whose files have changed and come to rest: a half-written file is left for the next look."""
        for part in tuple(self._parts.values()):
            prints = await asyncio.to_thread(_prints, part)
            is_at_rest = prints == part.seen
            part.seen = prints
            if is_at_rest and prints != part.loaded:
                self._log.info("files_changed", part=part.name)
                await self._read(part)

    async def _is_asked(self) -> bool:
        try:
            async with asyncio.timeout(self._watch_s):
                await self._asked.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self, part: _Part) -> bool:
        """Reload one part and return whether what it read is in force. A fault of a part is logged and does not reach
        the others."""
        before = await asyncio.to_thread(_prints, part)
        is_in_force = False
        try:
            done = part.callback()
            if inspect.isawaitable(done):
                await done
            is_in_force = True
            part.refused = None
            self._log.info("reload_applied", part=part.name)
        except ReloadRefused as refused:
            faults = str(refused).splitlines()
            self._log.error("reload_rejected", part=part.name, faults=faults)
            self._refuse(part, faults)
        except Exception:  # noqa: BLE001 - a defect in one part must not keep the others from being read
            self._log.exception("reload_failed", part=part.name)
            self._refuse(part, ["an internal error, which the log has as reload_failed"])
        after = await asyncio.to_thread(_prints, part)
        part.loaded = {path: before.get(path, found) for path, found in after.items()}
        part.seen = after
        if self._on_reload is not None:
            self._on_reload(part.name, is_in_force)
        return is_in_force

    def _refuse(self, part: _Part, faults: list[str]) -> None:
        now_ms = self._clock.wall_ns() // _MILLISECOND_NS
        since_ms = now_ms if part.refused is None else part.refused.since_ms
        part.refused = RefusedFiles(part.name, tuple(map(str, part.files())), tuple(faults), since_ms)


def _prints(part: _Part) -> dict[Path, _Print]:
    return {path: _print_of(path) for path in part.files()}


def _print_of(path: Path) -> _Print:
    """Stamp of the file behind a link, so that a file swapped by its link counts as changed. So does one with another
    owner or mode, which may have become readable or unreadable."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
