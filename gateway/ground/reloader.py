"""Takes in changed files while a program runs: on a signal, or when a watched file has changed and come to rest.

Each part of the program registers what it can read anew. A part that refuses what it finds keeps what it had; nothing
here ends a request or the process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from structlog.typing import FilteringBoundLogger

Callback = Callable[[], Awaitable[None] | None]
"""Reads and checks everything first, then puts it in force. Raises ReloadRefused, and has changed nothing then."""
Files = Callable[[], Iterable[Path]]
_Print = tuple[int, ...] | None
"""What a file looks like from outside; None for one that is not there."""


class ReloadRefused(Exception):
    """What was found cannot be used: why, in words, one line per fault. What was in force stays in force."""


@dataclass(slots=True)
class _Part:
    name: str
    callback: Callback
    files: Files
    seen: dict[Path, _Print] = field(default_factory=dict)
    """As of the last look."""
    loaded: dict[Path, _Print] = field(default_factory=dict)
    """As of the last time it was read."""


class Reloader:
    """The one registry of what can be read anew. Parts are read in the order in which they were added."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        watch_s: float | None = None,
        on_reload: Callable[[str, bool], None] | None = None,
    ) -> None:
        """`watch_s` is the pause between two looks at the files; None looks at none. `on_reload` is told each part's
        name and whether what it read is in force."""
        self._log = log
        self._watch_s = watch_s
        self._on_reload = on_reload
        self._parts: dict[str, _Part] = {}
        self._asked = asyncio.Event()

    def add(self, name: str, callback: Callback, files: Files = tuple) -> None:
        """Register a part. A change of one of its `files` reads it alone; a request reads every part."""
        assert name not in self._parts, f"{name} is registered already"
        part = _Part(name, callback, files)
        part.loaded = part.seen = _prints(part)
        self._parts[name] = part

    def request(self) -> None:
        """Read everything anew, soon. For a signal handler."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if await self._is_asked():
                self._asked.clear()
                await self.reload()
            else:
                await self.look()

    async def reload(self) -> list[str]:
        """Read every part anew, changed or not. Gives the names of those that refused."""
        self._log.info("reloading", parts=list(self._parts))
        return [part.name for part in tuple(self._parts.values()) if not await self._read(part)]

    async def look(self) -> None:
        """Read the parts whose files have changed and come to rest: a file half written is left for the next look."""
        for part in tuple(self._parts.values()):
            prints = await asyncio.to_thread(_prints, part)
            is_at_rest = prints == part.seen
            part.seen = prints
            if is_at_rest and prints != part.loaded:
                self._log.info("files have changed", part=part.name)
                await self._read(part)

    async def _is_asked(self) -> bool:
        try:
            async with asyncio.timeout(self._watch_s):
                await self._asked.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self, part: _Part) -> bool:
        """One part's fault is not another's: each is read whatever became of those before it."""
        before = await asyncio.to_thread(_prints, part)
        is_in_force = False
        try:
            done = part.callback()
            if inspect.isawaitable(done):
                await done
            is_in_force = True
            self._log.info("reloaded", part=part.name)
        except ReloadRefused as refused:
            self._log.error(
                "RELOAD REFUSED: what was in force stays in force", part=part.name, faults=str(refused).splitlines()
            )
        except Exception:  # noqa: BLE001 - a fault of ours in one part must not keep the others from being read
            self._log.exception("RELOAD FAILED: a part could not be read", part=part.name)
        after = await asyncio.to_thread(_prints, part)
        part.loaded = {path: before.get(path, found) for path, found in after.items()}
        part.seen = after
        if self._on_reload is not None:
            self._on_reload(part.name, is_in_force)
        return is_in_force


def _prints(part: _Part) -> dict[Path, _Print]:
    return {path: _print_of(path) for path in part.files()}


def _print_of(path: Path) -> _Print:
    """Of the file behind a link, so that one which is swapped by its link counts as changed. So does one whose owner or
    mode has changed: it may be read now, or no longer."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
