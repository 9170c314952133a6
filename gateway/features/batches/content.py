"""Content of stored files, read part after part."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import BinaryIO

from gateway.door import errors
from gateway.door.errors import ClientFault
from gateway.features.batches.files import BatchFiles
from gateway.features.batches.state import StoredFile
from mesh.threads import finish_in_thread


class StoredContent:
    """Content of one or more files, of which the first part is open."""

    def __init__(self, folder: BatchFiles, names: list[str], first: BinaryIO) -> None:
        self._folder = folder
        self._names = names
        self._opened = first

    @classmethod
    async def open(cls, folder: BatchFiles, files: Iterable[StoredFile]) -> StoredContent:
        """Open files, of which there is one at least. Raises ClientFault where the first part cannot be read."""
        first, *others = [name for each in files for name in each.stored_names]
        try:
            return cls(folder, others, await finish_in_thread(folder.read, first))
        except OSError as error:
            raise ClientFault(errors.FILE_NOT_FOUND) from error

    async def pieces(self, read: Callable[[BinaryIO], bytes]) -> AsyncGenerator[bytes, None]:
        """Read pieces until the end. Raises OSError."""
        while True:
            with self._opened:
                while piece := await finish_in_thread(read, self._opened):
                    yield piece
            if not self._names:
                return
            self._opened = await finish_in_thread(self._folder.read, self._names.pop(0))
