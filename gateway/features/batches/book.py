"""Files and batches in memory, beside their store: what one gateway knows of them. The event loop is the only caller.

Rows are in memory as a whole; the store is the copy that outlives the process. A new row is stored before it is known
here. A change by the runner is known here first, so that the next one builds on it, and stands even if the store
refuses it; a client's is stored first, so that a refusal is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from gateway.features.batches.forecast import LineRate
from gateway.features.batches.sizes import FolderSizes
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
        self.sizes = FolderSizes()
        """Sizes of files, of uploads that are not complete, and of results of batches that have not ended."""
        self.rates: dict[str, LineRate] = {}
        """Rates at which lines end, of the batches that run."""
        self.news = Waiter()
        """Woken when a batch has changed."""
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Open the store. Raises OSError."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        await self.do(self.store.open)
        self.files = {each.id: each for each in await self.do(self.store.files)}
        self.batches = {each.id: each for each in await self.do(self.store.batches)}
        self.sizes = FolderSizes()
        for file in self.files.values():
            self.sizes.put(file.id, file.tenant, file.size)
        for batch in [each for each in self.batches.values() if not each.has_ended]:
            await self._measure_results(batch)
        self.is_open = True

    async def _measure_results(self, batch: ClientBatch) -> None:
        for file_id in batch.result_ids:
            if size := await self.do(self.store.size, file_id):
                self.sizes.put(file_id, batch.tenant, size)

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

    async def keep_file(self, upload: BinaryIO, file: StoredFile) -> None:
        """Keep an upload. It is kept as well if the caller is cancelled meanwhile."""
        try:
            await self.do(self.store.finish_upload, upload, file)
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is None:
                self._remember_file(file)
            raise
        self._remember_file(file)

    def _remember_file(self, file: StoredFile) -> None:
        self.files[file.id] = file
        self.sizes.put(file.id, file.tenant, file.size)

    async def delete_file(self, file_id: str) -> None:
        await self.do(self.store.delete_file, file_id)
        self.files.pop(file_id, None)
        self.sizes.drop(file_id)

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
        for file in files:
            self._remember_file(file)
        self.batches[batch.id] = batch
        self.news.wake()

    async def change(self, batch_id: str, change: Callable[[ClientBatch], ClientBatch]) -> ClientBatch:
        """Change a batch and store it. Of two changes at once, the later one sees the earlier one."""
        before = self.batches[batch_id]
        self.batches[batch_id] = changed = change(before)
        if changed != before:
            await self.put_again(batch_id)
        return changed

    async def change_once_stored(self, batch_id: str, change: Callable[[ClientBatch], ClientBatch]) -> ClientBatch:
        """Change a batch once the change is stored: after an OSError nothing has changed. `change` is asked again where
        the batch moved on meanwhile. A cancelled caller's change is carried out if it was stored."""
        while (changed := change(before := self.batches[batch_id])) != before:
            try:
                await self.do(self.store.put_batch, changed)
            except asyncio.CancelledError as cancelled:
                if cancelled.__cause__ is None:
                    self._change_here(batch_id, change)
                raise
            if self.batches[batch_id].status is before.status:
                return self._change_here(batch_id, change)
        return changed

    def _change_here(self, batch_id: str, change: Callable[[ClientBatch], ClientBatch]) -> ClientBatch:
        self.batches[batch_id] = changed = change(self.batches[batch_id])
        self.news.wake()
        return changed

    async def put_again(self, batch_id: str) -> None:
        """Store a batch as it is now."""
        await self.do(self.store.put_batch, self.batches[batch_id])
        self.news.wake()

    async def drop_results(self, batch: ClientBatch, kept: Iterable[StoredFile] = ()) -> None:
        """Delete result files of a batch that no row names. Raises OSError."""
        names = {each.id for each in kept}
        for file_id in batch.result_ids:
            if file_id not in names:
                await self.do(self.store.drop_result, file_id)
                self.sizes.drop(file_id)

    async def delete_batch(self, batch_id: str) -> None:
        await self.do(self.store.delete_batch, batch_id)
        self.batches.pop(batch_id, None)

    def is_used(self, file_id: str) -> bool:
        """True while a batch that has not ended reads the file."""
        return any(each.input_file_id == file_id and not each.has_ended for each in self.batches.values())
