"""Small files that survive a restart, each with its format, a version and a checksum, and replaced whole or not at all.

A file that cannot be trusted is not used in part: reading it raises the reason, and the caller decides what is safe
without it.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mesh.private_files import make_private_folder, named, private_opener

STATE_BYTES_MAX = 16 << 20
_ENVELOPE_BYTES_MAX = 1024

_Content = TypeVar("_Content")


class StateUnusable(Exception):
    """File that exists and cannot be used; the message says why."""


class _Envelope(msgspec.Struct, frozen=True):
    kind: str
    version: int
    checksum: str
    content: msgspec.Raw


class StateFile(Generic[_Content]):
    """File with one value of one type. `version` changes when an older program would misread the content."""

    def __init__(self, path: Path, kind: str, version: int, content: type[_Content]) -> None:
        self.path = path
        self._kind = kind
        self._version = version
        self._decoder = msgspec.json.Decoder(content)

    def read(self) -> _Content | None:
        """Read the value; None where there is no file. Raises StateUnusable."""
        try:
            return self._content_of(_read_bounded(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{self.path}: cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise StateUnusable(f"{self.path}: is damaged: {error}") from error

    def write(self, content: _Content) -> None:
        """Write the value, whole or not at all; it is on the disk when this returns. Raises OSError, also for a value
        that is too large to be read again."""
        encoded = msgspec.json.encode(content)
        if len(encoded) + _ENVELOPE_BYTES_MAX > STATE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"it is larger than {STATE_BYTES_MAX >> 20} MiB", str(self.path))
        envelope = _Envelope(self._kind, self._version, _checksum(encoded), msgspec.Raw(encoded))
        make_private_folder(self.path.parent)
        fresh = self.path.with_name(f"{self.path.name}.new")
        with named(fresh), open(fresh, "wb", opener=private_opener) as file:
            file.write(msgspec.json.encode(envelope) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        _sync_folder(self.path.parent)

    def _content_of(self, text: bytes) -> _Content:
        envelope = msgspec.json.decode(text, type=_Envelope)
        if (envelope.kind, envelope.version) != (self._kind, self._version):
            found = f"{envelope.kind} of version {envelope.version}"
            raise StateUnusable(f"{self.path}: is {found}, not {self._kind} of version {self._version}")
        if _checksum(bytes(envelope.content)) != envelope.checksum:
            raise StateUnusable(f"{self.path}: is damaged: its checksum does not fit")
        return self._decoder.decode(envelope.content)


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(STATE_BYTES_MAX + 1)
    if len(text) > STATE_BYTES_MAX:
        raise StateUnusable(f"{path}: is larger than {STATE_BYTES_MAX >> 20} MiB")
    return text


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
