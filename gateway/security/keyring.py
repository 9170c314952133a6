"""The keys in force: read at the start, read anew when the file changes, asked about each request.

A file that cannot be used never replaces one that could.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gateway.callers import ClientKey
from gateway.clock import Clock
from gateway.reload import ReloadRefused
from gateway.security.keys import KeysFileError, KeyTable, read_keys_file


class Keyring:
    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises KeysFileError: there is nothing yet to fall back on."""
        self._path = path
        self._clock = clock
        self._table = KeyTable(read_keys_file(path).keys)

    def __len__(self) -> int:
        return len(self._table)

    def check(self, credential: str) -> ClientKey | None:
        """A `KeyCheck`."""
        return self._table.find(credential, datetime.fromisoformat(self._clock.wall_time()))

    def files(self) -> tuple[Path, ...]:
        return (self._path,)

    def reload(self) -> None:
        """For the Reloader. Requests that run keep what their key allowed when they came."""
        try:
            self._table = KeyTable(read_keys_file(self._path).keys)
        except KeysFileError as error:
            raise ReloadRefused(str(error)) from error
