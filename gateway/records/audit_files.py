"""Tamper-evident files: each line carries the hash of the line before it, across files too.

Lines are only appended, never changed. The module does not interpret them, and deletes only the files that it was told
to delete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Place
from gateway.records.audit_heads import Head, HeadSigner
from mesh.private_files import make_private_folder, named, private_opener
from mesh.shortage import is_full_disk

FORMAT = 2
SUFFIX = ".audit"
LINE_BYTES_MAX = 1 << 20

_TAIL_BYTES = 2 * LINE_BYTES_MAX
_BLOCK_BYTES = 256 * 1024
_CHAIN_BYTES = 75
"""Bytes that the hash and the line end add to a line."""
_SIGNATURES_BYTES = 1024
"""Bytes reserved for a signed head and a signed end."""


class FileHeader(msgspec.Struct, frozen=True, tag="file", tag_field="kind"):
    """First line of a file. Its `prev` is the hash of the last line of this gateway's previous file."""

    format: int
    time: str
    gateway: str
    region: str
    jurisdiction: str
    number: int
    """Number of the file among this gateway's files, from 1 over all restarts."""
    oldest: int
    """Number of the oldest file that is kept; the gateway has deleted the ones before it and no other."""
    prev: str


class ChainSettings(Struct, frozen=True):
    folder: Path
    file_bytes_max: int
    files_max: int | None
    syncs: bool
    """True to force lines onto the disk before `write` returns."""


class ChainedFiles:
    """Writer of a chain. `write` may be called from any thread; calls wait for each other."""

    def __init__(
        self,
        settings: ChainSettings,
        gateway_id: GatewayId,
        place: Place,
        *,
        wall_time: Callable[[], str],
        on_deleted: Callable[[Path], None],
        signer: HeadSigner | None = None,
    ) -> None:
        """Begin a new file that continues the last one. Raises OSError when the folder cannot be written; with a full
        disk, or while another process writes the chain, the first `write` that can begins the file."""
        self.fault = ""
        """Reason why no file could be begun yet."""
        self._signer = signer
        self._line = 0
        """Lines of the current file."""
        self._sealed_line = 0
        """Value of `_line` when the head was last returned."""
        self._is_ended = False
        """True once the end is signed; no line is added after it."""
        self.is_closed = False
        """True after `close`: no line is written, since another process may own the chain."""
        self.unwritten_bytes = 0
        """Bytes given to `write` and not in a file yet."""
        self._settings = settings
        self._gateway_id = gateway_id
        self._place = place
        self._wall_time = wall_time
        self._on_deleted = on_deleted
        self._one_writer = threading.Lock()
        self._unwritten: list[bytes] = []
        self._number, self._head = 0, ""
        self._oldest = 1
        self._fd = -1
        self._size = 0
        try:
            self._begin_first_file()
        except OSError as error:
            if not is_full_disk(error) and not isinstance(error, BlockingIOError):
                raise
            self.fault = str(error)

    def write(self, lines: Iterable[bytes]) -> None:
        """Append lines: JSON objects without `prev` and line end. Raises OSError; the next call writes the lines that
        are not in a file then."""
        with self._one_writer:
            for line in lines:
                self._unwritten.append(line)
                self.unwritten_bytes += len(line)
            if self.is_closed:
                raise OSError("the audit's files are closed")
            if self._fd < 0:
                self._begin_first_file()
            while self._unwritten:
                self._write_block()
            if self._settings.syncs:
                os.fsync(self._fd)

    def seal(self) -> Head | None:
        """Head of the chain, to be noted elsewhere; with a key it is signed in the chain too. None if there are no new
        lines. Raises OSError."""
        with self._one_writer:
            if self._fd < 0 or self._line == self._sealed_line:
                return None
            self._sign(ends=False)
            return self._stand()

    def left(self) -> list[bytes]:
        """Hand the lines that could not be written to the caller, and forget them."""
        with self._one_writer:
            lines, self._unwritten, self.unwritten_bytes = self._unwritten, [], 0
            return lines

    def close(self) -> Head | None:
        """End the chain and return its last head; None where no file was begun. If the disk cannot take the signature,
        the file stays without a signed end."""
        with self._one_writer:
            self.is_closed = True
            if self._fd < 0:
                return None
            with suppress(OSError):
                self._end_file()
            os.close(self._fd)
            self._fd = -1
            return self._stand()

    def _stand(self) -> Head:
        self._sealed_line = self._line
        return Head(self._gateway_id, self._number, self._line, self._head)

    def _end_file(self) -> None:
        if not self._is_ended and os.fstat(self._fd).st_nlink > 0:
            self._sign(ends=True)
            self._is_ended = True

    def _sign(self, *, ends: bool) -> None:
        if self._signer is None:
            return
        line = self._signed(self._signer, Head(self._gateway_id, self._number, self._line, self._head), ends=ends)
        self._append(self._fd, line + b"\n")
        self._size += len(line) + 1
        self._line += 1
        self._head = hash_of(line)

    def _signed(self, signer: HeadSigner, head: Head, *, ends: bool) -> bytes:
        return chain(signer.sign(head, self._wall_time(), ends=ends), head.head)

    def _write_block(self) -> None:
        holds_lines = self._size > self._header_size
        first_bytes = len(self._unwritten[0]) + _CHAIN_BYTES
        if (holds_lines and self._is_full(first_bytes)) or self._is_ended or os.fstat(self._fd).st_nlink == 0:
            self._end_file()
            self._begin_file()
        block, head, count = self._next_block()
        self._append(self._fd, block)
        self._size += len(block)
        self._line += count
        self._head = head
        self.unwritten_bytes -= sum(map(len, self._unwritten[:count]))
        del self._unwritten[:count]

    def _next_block(self) -> tuple[bytes, str, int]:
        """Chain as many waiting lines as fit into this file, at least one. Returns the bytes, the last hash, and the
        number of lines."""
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
        signatures = 0 if self._signer is None else _SIGNATURES_BYTES
        return self._size + more_bytes + signatures > self._settings.file_bytes_max

    def _append(self, fd: int, block: bytes) -> None:
        """Append all of the block or none of it: half a line would break the chain for good."""
        try:
            with named(self._path(self._number)):
                _write_all(fd, block)
        except OSError:
            os.ftruncate(fd, self._size)
            raise

    def _begin_first_file(self) -> None:
        make_private_folder(self._settings.folder)
        self._number, self._head, self._oldest = self._last()
        with self._last_locked():
            self._begin_file()
        self.fault = ""

    @contextmanager
    def _last_locked(self) -> Iterator[None]:
        """Hold the lock of the chain's last file, which every writer holds on the file it writes. Raises
        BlockingIOError while another process holds it."""
        if self._number == 0:
            yield
            return
        fd = os.open(self._path(self._number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(fd)
            yield
        finally:
            os.close(fd)

    def _begin_file(self) -> None:
        number = self._number + 1
        if self._fd >= 0:
            os.fsync(self._fd)
        path = self._path(number)
        fd = private_opener(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        beginning = self._beginning(number)
        block = b"".join(line + b"\n" for line in beginning)
        try:
            _lock(fd)
            with named(path):
                _write_all(fd, block)
                os.fsync(fd)
                self._sync_folder()
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._oldest = self._oldest_kept(number)
        self._fd, self._number, self._head = fd, number, hash_of(beginning[-1])
        self._size = self._header_size = len(block)
        self._line, self._sealed_line, self._is_ended = len(beginning), 0, False
        self._delete_oldest()

    def _path(self, number: int) -> Path:
        return self._settings.folder / f"{self._gateway_id}-{number:08}{SUFFIX}"

    def _beginning(self, number: int) -> list[bytes]:
        """First lines of a file: the header and, with a key, a signed head, so that only the holder of the key can
        begin a file."""
        header = msgspec.json.encode(self._header(number))
        if self._signer is None:
            return [header]
        head = Head(self._gateway_id, number, 1, hash_of(header))
        return [header, self._signed(self._signer, head, ends=False)]

    def _header(self, number: int) -> FileHeader:
        return FileHeader(
            FORMAT,
            self._wall_time(),
            self._gateway_id,
            self._place.region,
            self._place.jurisdiction,
            number,
            self._oldest_kept(number),
            self._head,
        )

    def _oldest_kept(self, number: int) -> int:
        """Number of the oldest file kept once file `number` exists. It is computed from numbers alone, so that a file
        removed by others is not taken for a deleted one."""
        files_max = self._settings.files_max
        return self._oldest if files_max is None else max(self._oldest, number - files_max + 1)

    def _sync_folder(self) -> None:
        """Sync the folder: a new file's name is on the disk only then."""
        fd = os.open(self._settings.folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _delete_oldest(self) -> None:
        if self._settings.files_max is None:
            return
        for number, path in sorted(self._files()):
            if number < self._oldest:
                path.unlink()
                self._on_deleted(path)

    def _last(self) -> tuple[int, str, int]:
        """Number and last hash of the file to continue, and the number of the oldest file kept then. A file whose
        header was cut off holds no line and is deleted."""
        for number, path in sorted(self._files(), reverse=True):
            if head := last_hash(path):
                return number, head, _oldest_in(path)
            path.unlink()
        return 0, "", 1

    def _files(self) -> list[tuple[int, Path]]:
        name = re.compile(rf"{re.escape(self._gateway_id)}-([0-9]{{8,}}){re.escape(SUFFIX)}")
        named = ((name.fullmatch(path.name), path) for path in self._settings.folder.iterdir())
        return [(int(match[1]), path) for match, path in named if match is not None]


def _lock(fd: int) -> None:
    """Lock the file until its descriptor is closed. Raises BlockingIOError while another process holds the lock. On a
    file system without locks the file is written without one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, "another process writes the audit chain") from error
    except OSError:
        return


def _write_all(fd: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(fd, rest) :]


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def chain(line: bytes, prev: str) -> bytes:
    """JSON object with the hash of the line before it as its last field."""
    return line[:-1] + b',"prev":"' + prev.encode() + b'"}'


def _oldest_in(path: Path) -> int:
    """Number of the oldest kept file, from the header; 1 where the header cannot be read, a fault that verification
    will report."""
    with path.open("rb") as file:
        try:
            return msgspec.json.decode(file.readline(LINE_BYTES_MAX), type=FileHeader).oldest
        except msgspec.DecodeError:
            return 1


def last_hash(path: Path) -> str:
    """Hash of the file's last whole line; empty if there is none. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        whole, end, _ = file.read().rpartition(b"\n")
    return hash_of(whole.rpartition(b"\n")[2]) if end else ""
