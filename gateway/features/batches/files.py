"""Files of batches in a folder. A file is written once as a whole, and never changed.

Every call blocks: the callers use threads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from gateway.features.batches.state import is_file_id
from mesh.private_files import make_private_folder, named, private_opener

STALE_S = 24 * 3600
"""Age of a file without a row from which no gateway is about to name it, where several share the files."""


class OpenUpload(Protocol):
    """File that is being written."""

    def write(self, data: bytes, /) -> object: ...


class BatchFiles(Protocol):
    """Place of files. Errors are OSError."""

    is_apart: bool
    """True if the files may be at hand for gateways with another database."""

    def open(self) -> None: ...

    def begin(self, name: str, /) -> OpenUpload: ...

    def finish(self, upload: OpenUpload, name: str, /) -> None:
        """Keep an upload: once this returns, it outlives a crash. A failure leaves no file under the name."""
        ...

    def drop(self, upload: OpenUpload | None, name: str, /) -> None:
        """Delete an upload that is not kept; None: it was begun, and never handed over."""
        ...

    def read(self, name: str, offset: int = 0, /) -> BinaryIO:
        """Open a file at an offset. Raises FileNotFoundError."""
        ...

    def delete(self, name: str, /) -> None:
        """Delete a file; a missing one changes nothing."""
        ...

    def sweep(self, wanted: Callable[[], Iterable[str]], /, *, is_shared: bool) -> None:
        """Delete remains of crashes: files of batches whose name up to its first point is not wanted. Where other
        gateways write files, too, only old ones are deleted. `wanted` is asked once the files are listed."""
        ...

    def scratch(self) -> BinaryIO:
        """New file without a name, which is gone once it is closed."""
        ...


def is_remains(name: str, wanted: Container[str]) -> bool:
    """True for the name of a file of batches, or of a part of one, that is not wanted; no other name is."""
    file_id = name.partition(".")[0]
    return is_file_id(file_id) and file_id not in wanted


class FolderUpload:
    """File on its way into the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open(path, "xb", opener=private_opener)  # noqa: SIM115 - it is closed once it is kept or dropped

    def write(self, data: bytes) -> object:
        return self.file.write(data)


class FolderFiles:
    """Files in one folder, which gateways may share over a network file system."""

    is_apart = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "files"

    def open(self) -> None:
        make_private_folder(self._folder)

    def begin(self, name: str) -> FolderUpload:
        return FolderUpload(self._part(name))

    def finish(self, upload: OpenUpload, name: str) -> None:
        assert isinstance(upload, FolderUpload), "it was begun here"
        with named(upload.path):
            upload.file.flush()
            os.fsync(upload.file.fileno())
            upload.file.close()
        path = self.path(name)
        upload.path.rename(path)
        try:
            _sync_folder(self._folder)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def drop(self, upload: OpenUpload | None, name: str) -> None:
        try:
            if isinstance(upload, FolderUpload):
                upload.file.close()
        finally:
            self._part(name).unlink(missing_ok=True)

    def read(self, name: str, offset: int = 0) -> BinaryIO:
        file = self.path(name).open("rb")
        file.seek(offset)
        return file

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def sweep(self, wanted: Callable[[], Iterable[str]], *, is_shared: bool) -> None:
        found = list(self._folder.iterdir())
        if is_shared:
            found = self._stale(found)
        names = set(wanted())
        for file in found:
            if is_remains(file.name, names):
                file.unlink(missing_ok=True)

    def _stale(self, found: list[Path]) -> list[Path]:
        """Files that are old by the clock of the file system, which another machine may keep."""
        with tempfile.NamedTemporaryFile(dir=self._folder) as probe:
            now_s = os.stat(probe.name).st_mtime  # noqa: PTH116
        ages = {file: now_s - _modified_s(file, now_s) for file in found}
        return [file for file, age_s in ages.items() if age_s > STALE_S]

    def scratch(self) -> BinaryIO:
        return tempfile.TemporaryFile(dir=self._folder)

    def path(self, name: str) -> Path:
        return self._folder / name

    def _part(self, name: str) -> Path:
        return self._folder / f"{name}.part"


def _modified_s(file: Path, default: float) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return default


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
