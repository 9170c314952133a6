"""Files and batches in memory, beside their store: what one gateway knows of them. The event loop is the only caller.

Rows are in memory as a whole; the store is the copy that outlives the process. A new row is stored before it is known
here. A change is known here first, so that the next one builds on it, and stands even if the store refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from gateway.core.vocabulary import TenantName
from gateway.features.batches.state import ClientBatch, StoredFile
from gateway.features.batches.store import BatchStore
from mesh.waiter import Waiter

_Result = TypeVar("_Result")


class BatchBook:
    """Files and batches by id. It is open only while this process owns the store."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self.is_open = False
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, ClientBatch] = {}
        self.uploading: dict[TenantName, int] = {}
        """Bytes of uploads that are not complete."""
        self.news = Waiter()
        """Woken when a batch has changed."""
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Open the store. Raises OSError."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        await self.do(self.store.open)
        self.files = {each.id: each for each in await self.do(self.store.files)}
        self.batches = {each.id: each for each in await self.do(self.store.batches)}
        self.is_open = True

    def close(self) -> None:
        """Close the store once the work at hand is done; blocks."""
        self.is_open = False
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self.store.close).result()
            thread.shutdown()

    async def do(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run work on the store in its thread. Raises OSError. A cancellation is passed on once the work is done; its
        cause is the exception of the work, if any."""
        if self._thread is None:
            raise OSError("the store of batches is closed")
        running = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError as cancelled:
            await asyncio.wait([running])
            raise cancelled from running.exception()

    def bytes_of(self, tenant: TenantName | None = None) -> int:
        """Bytes of all files and uploads, or of a tenant's."""
        kept = sum(each.size for each in self.files.values() if tenant in (None, each.tenant))
        return kept + sum(size for each, size in self.uploading.items() if tenant in (None, each))

    async def keep_file(self, upload: BinaryIO, file: StoredFile) -> None:
        """Keep an upload. It is kept as well if the caller is cancelled meanwhile."""
        try:
            await self.do(self.store.finish_upload, upload, file)
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is None:
                self.files[file.id] = file
            raise
        self.files[file.id] = file

    async def delete_file(self, file_id: str) -> None:
        await self.do(self.store.delete_file, file_id)
        self.files.pop(file_id, None)

    async def put(self, batch: ClientBatch, files: Iterable[StoredFile] = ()) -> None:
        """Keep a batch, with files that it has brought. It is kept as well if the caller is cancelled meanwhile."""
        files = tuple(files)
        try:
            await self.do(self.store.put_batch, batch, files)
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is None:
                self._remember(batch, files)
            raise
        self._remember(batch, files)

    def _remember(self, batch: ClientBatch, files: Iterable[StoredFile]) -> None:
        self.files.update({each.id: each for each in files})
        self.batches[batch.id] = batch
        self.news.wake()

    async def change(self, batch_id: str, change: Callable[[ClientBatch], ClientBatch]) -> ClientBatch:
        """Change a batch and store it. Of two changes at once, the later one sees the earlier one."""
        before = self.batches[batch_id]
        self.batches[batch_id] = changed = change(before)
        if changed != before:
            await self.put_again(batch_id)
        return changed

    async def put_again(self, batch_id: str) -> None:
        """Store a batch as it is now."""
        await self.do(self.store.put_batch, self.batches[batch_id])
        self.news.wake()

    async def delete_batch(self, batch_id: str) -> None:
        await self.do(self.store.delete_batch, batch_id)
        self.batches.pop(batch_id, None)

    def is_used(self, file_id: str) -> bool:
        """True while a batch that has not ended reads the file."""
        return any(each.input_file_id == file_id and not each.has_ended for each in self.batches.values())
