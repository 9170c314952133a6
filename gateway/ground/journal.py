"""Keeps the story of a running program in numbered files, one step a line. What a line says is for whoever writes it.

A story starts when the process does. With its first file rotated away the rest can be read but no longer replayed. A
disk that fails ends the journal, loudly, and nothing else: it holds up no request. It does not begin again by itself
when there is room: what came after a hole could never be replayed. What was written until then can be, and a restart
begins another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gateway.ground.private_files import make_private_folder, named, private_opener
from gateway.ground.shortage import is_full_disk
from gateway.ground.threads import finish_in_thread


class JournalUnreadable(Exception):
    """A file that is no journal, is damaged, or belongs to another story."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    folder: Path
    file_bytes_max: int
    files_max: int
    buffer_bytes_max: int = 16 << 20
    """More than this not yet on disk means that the disk cannot keep up."""
    flush_interval_s: float = 0.5


class JournalFiles:
    """Takes lines and keeps them. `run` does the writing, in a thread."""

    def __init__(
        self,
        settings: JournalSettings,
        story: str,
        first_line: Callable[[int], bytes],
        on_stopped: Callable[[str], None],
    ) -> None:
        """`first_line` begins a file, by its number. Raises OSError when the folder cannot be written: that is better
        known at the start. A full disk ends the journal before it has begun."""
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
        """Write what has gathered, again and again, until cancelled; call `close` afterwards."""
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
        """Write what is left."""
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
        """For good, and loudly: what could not be told again is better not begun."""
        self._is_writing = False
        self._take()
        self._on_stopped(reason)

    def _write(self, lines: list[bytes]) -> None:
        """One at a time, so that lines stay in order."""
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
        """A file without its first line would spoil the story before it."""
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
