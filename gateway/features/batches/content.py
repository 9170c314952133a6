"""Content of stored files, read part after part."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import BinaryIO

from gateway.door import errors
from gateway.door.errors import ClientFault
from gateway.features.batches.book import BatchBook
from gateway.features.batches.state import StoredFile


class StoredContent:
    """Content of one or more files, of which the first part is open."""

    def __init__(self, book: BatchBook, names: list[str], first: BinaryIO) -> None:
        self._book = book
        self._names = names
        self._opened = first

    @classmethod
    async def open(cls, book: BatchBook, files: Iterable[StoredFile]) -> StoredContent:
        """Open files, of which there is one at least. Raises ClientFault where the first part is missing, or cannot be
        read at present."""
        first, *others = [name for each in files for name in each.stored_names]
        try:
            return cls(book, others, await book.in_files(book.folder.read, first))
        except FileNotFoundError as error:
            raise ClientFault(errors.FILE_NOT_FOUND) from error
        except OSError as error:
            raise ClientFault(errors.BATCHES_UNAVAILABLE) from error

    async def pieces(self, read: Callable[[BinaryIO], bytes]) -> AsyncGenerator[bytes, None]:
        """Read pieces until the end. Raises OSError."""
        while True:
            with self._opened:
                while piece := await self._book.in_files(read, self._opened):
                    yield piece
            if not self._names:
                return
            self._opened = await self._book.in_files(self._book.folder.read, self._names.pop(0))
