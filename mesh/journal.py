"""Keeps the journal of a running program in numbered files, one step a line. The writer defines what a line holds.

A story is the journal of one process, from its start. Once its first file has been rotated away, the rest can be read
but not replayed. A disk that fails ends the journal, with an error, and holds up no request. The journal does not
resume when there is room again, since steps after a gap could never be replayed. Those before the failure can be, and a
restart begins another story.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from mesh.private_files import make_private_folder, named, private_opener
from mesh.shortage import is_full_disk
from mesh.threads import finish_in_thread


class JournalUnreadable(Exception):
    """File that is no journal, is damaged, or belongs to another story."""


class JournalSettings(Struct, frozen=True):
    folder: Path
    file_bytes_max: int
    files_max: int
    buffer_bytes_max: int = 16 << 20
    """Bytes that may wait for the disk; with more, the disk cannot keep up and the journal ends."""
    flush_interval_s: float = 0.5


class JournalFiles:
    """Journal that takes lines and writes them to files. `run` does the writing, in a thread."""

    def __init__(
        self,
        settings: JournalSettings,
        story: str,
        first_line: Callable[[int], bytes],
        on_stopped: Callable[[str], None],
    ) -> None:
        """Begin the first file. `first_line` gives the first line of each file, by the file's number. Raises OSError
        where the folder cannot be written, which is best known at the start; a full disk ends the journal at once
        instead."""
        self._settings = settings
        self._story = story
        self._first_line = first_line
        self._on_stopped = on_stopped
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._file_bytes = 0
        self._parts = 0
        self._is_writing = True
        self._one_writer = threading.Lock()
        try:
            make_private_folder(settings.folder)
            self._begin_file()
        except OSError as error:
            if not is_full_disk(error):
                raise
            self.stop(f"cannot begin: {error}")

    @property
    def folder(self) -> Path:
        return self._settings.folder

    async def run(self) -> None:
        """Write the waiting lines repeatedly, until cancelled; call `close` afterwards."""
        while self._is_writing:
            await asyncio.sleep(self._settings.flush_interval_s)
            await self.flush()

    async def flush(self) -> None:
        lines = self._take()
        try:
            await finish_in_thread(self._write, lines)
        except OSError as error:
            self.stop(f"cannot write: {error}")
        except asyncio.CancelledError as cancelled:
            if isinstance(cancelled.__cause__, OSError):
                self.stop(f"cannot write: {cancelled.__cause__}")
            raise

    def close(self) -> None:
        """Write the waiting lines and end the journal."""
        try:
            self._write(self._take())
        except OSError as error:
            self.stop(f"cannot write: {error}")
        self._is_writing = False

    def keep(self, line: bytes) -> None:
        if not self._is_writing:
            return
        self._buffer.append(line)
        self._buffer_bytes += len(line)
        if self._buffer_bytes > self._settings.buffer_bytes_max:
            self.stop("the disk cannot keep up")

    def _take(self) -> list[bytes]:
        lines, self._buffer, self._buffer_bytes = self._buffer, [], 0
        return lines

    def stop(self, reason: str) -> None:
        """End the journal for good, and report the reason: steps after a gap could not be replayed."""
        self._is_writing = False
        self._take()
        self._on_stopped(reason)

    def _write(self, lines: list[bytes]) -> None:
        """Write lines, one caller at a time, so that they stay in order."""
        with self._one_writer:
            for block in _blocks(lines, self._settings.file_bytes_max):
                if self._file_bytes + len(block) > self._settings.file_bytes_max:
                    self._begin_file()
                path = self._path(self._parts - 1)
                with named(path), open(path, "ab", opener=private_opener) as file:
                    file.write(block)
                self._file_bytes += len(block)

    def _begin_file(self) -> None:
        line = self._first_line(self._parts)
        self._write_first(self._path(self._parts), line)
        self._parts += 1
        self._file_bytes = len(line)
        journals = sorted(
            self._settings.folder.glob("*.journal"), key=lambda path: (path.stat().st_mtime_ns, path.name)
        )
        for old in journals[: -self._settings.files_max]:
            old.unlink()

    def _write_first(self, path: Path, line: bytes) -> None:
        """Write the first line of a file, and remove the file where that fails: without its first line it would spoil
        the story before it."""
        try:
            with named(path), open(path, "wb", opener=private_opener) as file:
                file.write(line)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _path(self, part: int) -> Path:
        return self._settings.folder / f"{self._story}-{part:06}.journal"


def code_version() -> str:
    try:
        return version("nightside")
    except PackageNotFoundError:
        return "unknown"


def complete_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise JournalUnreadable(f"{path.name}: {error.strerror}") from error


def _blocks(lines: list[bytes], bytes_max: int) -> Iterator[bytes]:
    """Join lines into blocks of about a sixteenth of a file, so that files keep to their bound."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size * 16 >= bytes_max:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)
