"""The keys in force: read at the start, read anew when the file changes, asked about each request.

A file that cannot be used never replaces one that could.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.ground.clock import Clock
from gateway.ground.faults import ConfigError
from gateway.ground.reloader import ReloadRefused
from gateway.request.callers import ClientKey
from gateway.security.keys import KeyTable, read_keys_file


class Keyring:
    """`check` is a KeyCheck."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises ConfigError: there is nothing yet to fall back on."""
        self._path = path
        self._clock = clock
        self._table = _read_table(path)

    def check(self, credential: str) -> ClientKey | None:
        return self._table.find(credential, self._clock.wall_ns())

    def files(self) -> tuple[Path, ...]:
        return (self._path,)

    async def reload(self) -> None:
        """For the Reloader. Requests that run keep what their key allowed when they came."""
        try:
            self._table = await asyncio.to_thread(_read_table, self._path)
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error


def _read_table(path: Path) -> KeyTable:
    return KeyTable(read_keys_file(path).keys)
