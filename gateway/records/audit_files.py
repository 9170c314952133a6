"""Files that show when they were tampered with: each line carries the hash of the line before, across files too.

Lines are added at the end and never changed. It knows nothing of what they say, and deletes only what it was told to.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.core.vocabulary import GatewayId, Place
from gateway.ground.private_files import make_private_folder, private_opener

FORMAT = 1
SUFFIX = ".audit"
LINE_BYTES_MAX = 1 << 20

_HASH = re.compile(rb'^\{.*"prev":"(?P<hash>[0-9a-f]{64}|)"\}$', re.DOTALL)
_TAIL_BYTES = 2 * LINE_BYTES_MAX
_BLOCK_BYTES = 256 * 1024
_CHAIN_BYTES = 75
"""What a line grows by when it is chained and ended."""


class FileHeader(msgspec.Struct, frozen=True, tag="file", tag_field="kind"):
    """A file's first line. Its `prev` is the hash of the last line of this gateway's file before it."""

    format: int
    time: str
    gateway: str
    region: str
    jurisdiction: str
    number: int
    """This gateway's files count from 1, over all restarts."""
    prev: str


@dataclass(frozen=True, slots=True)
class ChainSettings:
    folder: Path
    file_bytes_max: int
    files_max: int | None
    syncs: bool
    """Force what was written onto the disk before `write` returns."""


class ChainedFiles:
    """The writing side. `write` may come from any thread; calls wait for each other."""

    def __init__(
        self,
        settings: ChainSettings,
        gateway_id: GatewayId,
        place: Place,
        *,
        wall_time: Callable[[], str],
        on_deleted: Callable[[Path], None],
    ) -> None:
        """Begins a file of its own that continues the last one. Raises OSError when the folder cannot be written."""
        self.unwritten_bytes = 0
        """Given to `write` and not yet in a file."""
        self._settings = settings
        self._gateway_id = gateway_id
        self._place = place
        self._wall_time = wall_time
        self._on_deleted = on_deleted
        self._one_writer = threading.Lock()
        self._unwritten: list[bytes] = []
        make_private_folder(settings.folder)
        self._number, self._head = self._last()
        self._fd = -1
        self._size = 0
        self._begin_file()

    def write(self, lines: Iterable[bytes]) -> None:
        """Add lines: JSON objects without `prev` and line end. Raises OSError; what is then not in a file is written
        by the next call."""
        with self._one_writer:
            for line in lines:
                self._unwritten.append(line)
                self.unwritten_bytes += len(line)
            while self._unwritten:
                self._write_block()
            if self._settings.syncs:
                os.fsync(self._fd)

    def close(self) -> None:
        with self._one_writer:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write_block(self) -> None:
        holds_lines = self._size > self._header_size
        first_bytes = len(self._unwritten[0]) + _CHAIN_BYTES
        if (holds_lines and self._is_full(first_bytes)) or os.fstat(self._fd).st_nlink == 0:
            self._begin_file()
        block, head, count = self._next_block()
        self._append(self._fd, block)
        self._size += len(block)
        self._head = head
        self.unwritten_bytes -= sum(map(len, self._unwritten[:count]))
        del self._unwritten[:count]

    def _next_block(self) -> tuple[bytes, str, int]:
        """As many lines as belong into this file, one at least, chained: the bytes, their last hash, their number."""
        head, size = self._head, 0
        chained: list[bytes] = []
        for line in self._unwritten:
            if chained and (size >= _BLOCK_BYTES or self._is_full(size + len(line) + _CHAIN_BYTES)):
                break
            whole = chain(line, head)
            head = hash_of(whole)
            chained.append(whole + b"\n")
            size += len(chained[-1])
        return b"".join(chained), head, len(chained)

    def _is_full(self, more_bytes: int) -> bool:
        return self._size + more_bytes > self._settings.file_bytes_max

    def _append(self, fd: int, block: bytes) -> None:
        """All of it or nothing: half a line would break the chain for good."""
        try:
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            os.ftruncate(fd, self._size)
            raise

    def _begin_file(self) -> None:
        number = self._number + 1
        if self._fd >= 0:
            os.fsync(self._fd)
        path = self._settings.folder / f"{self._gateway_id}-{number:08}{SUFFIX}"
        fd = private_opener(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        line = msgspec.json.encode(self._header(number))
        try:
            os.write(fd, line + b"\n")
            os.fsync(fd)
            self._sync_folder()
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._number, self._head = fd, number, hash_of(line)
        self._size = self._header_size = len(line) + 1
        self._delete_oldest()

    def _header(self, number: int) -> FileHeader:
        return FileHeader(
            FORMAT,
            self._wall_time(),
            self._gateway_id,
            self._place.region,
            self._place.jurisdiction,
            number,
            self._head,
        )

    def _sync_folder(self) -> None:
        """A new file's name is on the disk only when its folder is."""
        fd = os.open(self._settings.folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _delete_oldest(self) -> None:
        if self._settings.files_max is None:
            return
        for _, path in sorted(self._files())[: -self._settings.files_max]:
            path.unlink()
            self._on_deleted(path)

    def _last(self) -> tuple[int, str]:
        """Number and last hash of the file to continue. One whose very header was cut off holds nothing and goes."""
        for number, path in sorted(self._files(), reverse=True):
            if head := last_hash(path):
                return number, head
            path.unlink()
        return 0, ""

    def _files(self) -> list[tuple[int, Path]]:
        name = re.compile(rf"{re.escape(self._gateway_id)}-([0-9]{{8,}}){re.escape(SUFFIX)}")
        named = ((name.fullmatch(path.name), path) for path in self._settings.folder.iterdir())
        return [(int(match[1]), path) for match, path in named if match is not None]


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def chain(line: bytes, prev: str) -> bytes:
    """The JSON object with the hash of the line before it as its last field."""
    return line[:-1] + b',"prev":"' + prev.encode() + b'"}'


def last_hash(path: Path) -> str:
    """Of the file's last whole line; empty if there is none. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        whole, end, _ = file.read().rpartition(b"\n")
    return hash_of(whole.rpartition(b"\n")[2]) if end else ""


# Reading


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A place where the chain does not hold, or where a file is not what it should be."""

    path: Path
    line: int
    """Counted from 1; 0 for the file as a whole."""
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    path: Path
    header: FileHeader | None
    """None when the file has no readable header."""
    lines: int
    """Whole lines, the header among them."""
    head: str
    """Hash of the last whole line. Noted elsewhere, it shows later whether the end was cut off."""
    broken: tuple[BrokenLine, ...]
    was_cut_off: bool
    """The last line is not whole, as after a power cut."""


def verify_file(path: Path) -> VerifiedFile:
    """Follow one file's chain from its first line to its last. Raises OSError."""
    followed = _Followed(path)
    with path.open("rb") as file:
        for line in _lines(file):
            followed.take(line)
    return followed.result()


class _Followed:
    """A chain as far as it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: FileHeader | None = None
        self._broken: list[BrokenLine] = []
        self._count = 0
        self._head = ""
        self._was_cut_off = False

    def take(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            self._was_cut_off = True
            return
        line = line[:-1]
        self._count += 1
        problem = self._read_header(line) if self._count == 1 else _problem_of(line, self._head)
        if problem is not None:
            self._broken.append(BrokenLine(self._path, self._count, problem))
        self._head = hash_of(line)

    def result(self) -> VerifiedFile:
        if self._count == 0:
            self._broken.append(BrokenLine(self._path, 0, "holds no whole line"))
        return VerifiedFile(self._path, self._header, self._count, self._head, tuple(self._broken), self._was_cut_off)

    def _read_header(self, line: bytes) -> str | None:
        self._header = read_header(line)
        return "is no header of an audit file of this format" if self._header is None else None


def gaps_between(files: Iterable[VerifiedFile]) -> list[BrokenLine]:
    """Where the files of a gateway, oldest first, do not follow each other."""
    last_of: dict[str, VerifiedFile] = {}
    found: list[BrokenLine] = []
    for file in in_order(files):
        assert file.header is not None
        before = last_of.get(file.header.gateway)
        if before is not None and (problem := _gap_between(before, file)) is not None:
            found.append(BrokenLine(file.path, 1, problem))
        last_of[file.header.gateway] = file
    return found


def in_order(files: Iterable[VerifiedFile]) -> list[VerifiedFile]:
    """Those with a header, by gateway and number."""
    named = [(each.header.gateway, each.header.number, each) for each in files if each.header is not None]
    return [each for *_, each in sorted(named, key=lambda entry: entry[:2])]


def read_header(line: bytes) -> FileHeader | None:
    try:
        header = msgspec.json.decode(line, type=FileHeader)
    except msgspec.DecodeError:
        return None
    return header if header.format == FORMAT else None


def _problem_of(line: bytes, head: str) -> str | None:
    match = _HASH.match(line)
    if match is None:
        return "is no line of an audit file"
    if match["hash"].decode() != head:
        return "does not follow the line before it: one of the two was changed, or lines were taken out or put in"
    return None


def _gap_between(before: VerifiedFile, file: VerifiedFile) -> str | None:
    assert before.header is not None
    assert file.header is not None
    if file.header.number == before.header.number:
        return f"has the number of {before.path}"
    if file.header.number != before.header.number + 1:
        return f"is number {file.header.number}, and number {before.header.number + 1} was not given"
    if file.header.prev != before.head:
        return f"does not follow the last line of {before.path}: its end was changed or cut off"
    return None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX):
        yield line
