"""Files and batches in memory, beside their store: what one gateway knows of them. The event loop is the only caller.

Rows are in memory as a whole; the store is the copy that outlives the process, and that other gateways may change. A
change is stored before it is known here. Work on the store runs in one thread, and is known here in that order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from gateway.features.batches.database import LeaseLost, RowOutdated
from gateway.features.batches.files import BatchFiles, OpenUpload
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.lease import BatchHolding, BatchLeases
from gateway.features.batches.sizes import FolderSizes
from gateway.features.batches.state import ClientBatch, StoredFile, UploadInParts, is_batch_id, is_file_id, is_upload_id
from gateway.features.batches.store import BatchMissing, BatchRow, BatchStore, FileInUse, StoreChanges, TakenBatch
from mesh.clock import Clock
from mesh.threads import finish_in, finish_in_thread
from mesh.waiter import Waiter

_MARK = "database"
"""Name of the file that says whose the files are."""
_FILES_MISSING = "the files of batches are not where they were: mount their folder, or correct the prefix"
_FILES_THREADS = 16
"""Threads for work on files, apart from those that look up names of engines: a bucket may not answer for a minute."""
_CHANGES_MAX = 100
"""Tries of one change: each follows a change of another gateway."""
_SILENCE_MAX_NS = 600 * 1_000_000_000
"""Time without a look after which rows are read anew: the store tells of deleted ones for an hour."""
_LOOK_GAP_NS = 50_000_000
"""Shortest time between two looks for ids that are not known here: clients may ask for many."""
_Result = TypeVar("_Result")


class RowsOutdated(OSError):
    """Rows in memory cannot follow the store any more: all have to be read anew."""


class BatchBook:
    """Files and batches by id. It is open only while this process uses the store."""

    def __init__(self, store: BatchStore, folder: BatchFiles, lease_ns: int, clock: Clock) -> None:
        self.store = store
        self.folder = folder
        """Place of the files' content."""
        self.is_open = False
        self._is_swept = False
        """True once the book was open: uploads may be under way from then on, also while it is opened anew."""
        self.files: dict[str, StoredFile] = {}
        """Files, and parts of uploads."""
        self.uploads: dict[str, UploadInParts] = {}
        self.parts: dict[str, dict[str, StoredFile]] = {}
        """Parts by upload, and by their id in the API."""
        self.batches: dict[str, ClientBatch] = {}
        self.owners: dict[str, str] = {}
        """Gateways that hold batches, by batch; empty: none does."""
        self.sizes = FolderSizes()
        """Sizes of files, of uploads that are not complete, and of results of batches that have not ended."""
        self.rates: dict[str, LineRate] = {}
        """Rates at which lines end, of the batches that run."""
        self.news = Waiter()
        """Woken when a batch has changed."""
        self.lease_ns = lease_ns
        self.leases = BatchLeases(lease_ns)
        self._undecided: dict[str, tuple[StoredFile, UploadInParts | None]] = {}
        """Files whose content is kept, and whose row may be stored or not, each with the upload that it completes."""
        self._versions: dict[str, int] = {}
        self._revision = 0
        """Revision of the store up to which its rows are known here."""
        self._looked_ns: int | None = None
        """Time at which the last look began that was answered; None: rows are not read yet."""
        self._tried: tuple[int, OSError | None] = (0, None)
        """Time at which the last look began, and its error."""
        self._looking = asyncio.Lock()
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._files_threads = ThreadPoolExecutor(_FILES_THREADS, thread_name_prefix="batch-files")

    async def open(self) -> None:
        """Open the store. Raises OSError."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        await self.do(self.store.open)
        await self.in_files(self.folder.open)
        self.files, self.batches, self.owners, self._versions, self._revision = {}, {}, {}, {}, 0
        self.uploads, self.parts = {}, {}
        self.sizes, self.leases, self._looked_ns = FolderSizes(), BatchLeases(self.lease_ns), None
        await self.look()
        if self._has_mark:
            await self.in_files(self._claim_files)
        for batch_id, kind, size in await self.do(self.store.result_sizes):
            batch = self.batches.get(batch_id)
            if batch is not None:
                self.sizes.put(batch.result_ids[kind], batch.tenant, size)
        if not self.store.is_shared and not self._is_swept:
            await self.sweep()  # no upload has begun, which has no row
        self.is_open = self._is_swept = True

    @property
    def _has_mark(self) -> bool:
        """True if the files may be another database's, or may be missing while this one is there."""
        return self.store.is_shared or self.folder.is_apart

    def _claim_files(self) -> None:
        """Mark the files as those of this database, if it is new; blocks. Raises OSError where they are not."""
        if self._found_mark():
            return
        if self.files:
            raise OSError(_FILES_MISSING)
        self.folder.drop(None, _MARK)  # a gateway may have died within this
        upload = self.folder.begin(_MARK)
        upload.write(self.store.mark.encode())
        self.folder.finish(upload, _MARK)

    def _found_mark(self) -> bool:
        """False if the files have no mark; blocks. Raises OSError where they are another database's: this gateway would
        delete them, since it knows none of them."""
        try:
            with self.folder.read(_MARK) as file:
                found = file.read()
        except FileNotFoundError:
            return False
        if found != self.store.mark.encode():
            raise OSError("the files of batches are those of another database: choose another folder or prefix")
        return True

    async def has_lost(self, name: str) -> bool:
        """True if a file is not there, while the place of files is the right one. Raises OSError."""

        def find() -> bool:
            try:
                self.folder.read(name).close()
            except FileNotFoundError:
                if self._has_mark and not self._found_mark():
                    raise OSError(_FILES_MISSING) from None
                return True
            return False

        return await self.in_files(find)

    async def sweep(self) -> None:
        """Delete remains of crashes. Raises OSError."""
        loop = asyncio.get_running_loop()

        def wanted() -> set[str]:
            return asyncio.run_coroutine_threadsafe(self._wanted(), loop).result()

        await self.in_files(partial(self.folder.sweep, wanted, is_shared=self.store.is_shared))

    async def _wanted(self) -> set[str]:
        """Ids of files that are named now by a row or a batch that has not ended. Raises OSError."""
        if self.store.is_shared:
            await self.look()  # the machine may have slept since the last one
        batches = [each for each in self.batches.values() if not each.has_ended]
        return {*self.files, *(file_id for each in batches for file_id in each.result_ids)}

    async def close(self) -> None:
        """Close the store once the work at hand is done, and give up what is held."""
        self.is_open = False
        thread, self._thread = self._thread, None
        if thread is not None:
            await finish_in_thread(thread.submit(self.store.close).result)
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

    async def in_files(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run work on files to its end, even if the caller is cancelled. Raises OSError."""
        return await finish_in(self._files_threads, work, *arguments)

    async def _do_and_know(self, learn: Callable[[], None], work: Callable[..., None], *arguments: object) -> None:
        """Run work on the store, and learn what it changed; also if the caller is cancelled meanwhile."""
        try:
            await self.do(work, *arguments)
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is None:
                learn()
            raise
        learn()

    # Changes by other gateways

    async def look(self) -> None:
        """Take in what other gateways have changed. Raises OSError, and RowsOutdated where some of it cannot be seen
        any more: after a long silence, as this machine may have slept, or once the store has lost its last changes."""
        asked_ns = self._clock.boot_ns()
        try:
            if self._looked_ns is not None and asked_ns - self._looked_ns > _SILENCE_MAX_NS and self.store.is_shared:
                raise RowsOutdated("rows of batches were not looked at for long")
            self._take_in(await self.do(self.store.changes, self._revision), asked_ns)
        except OSError as error:
            self._tried = (asked_ns, error)
            raise
        self._looked_ns, self._tried = asked_ns, (asked_ns, None)

    async def _look_anew(self) -> None:
        """Look, or share a look that begins after this call: one serves all who wait for it. Raises OSError."""
        came_ns = self._clock.boot_ns()
        async with self._looking:
            if self._tried[0] < came_ns:
                gap_ns = self._tried[0] + _LOOK_GAP_NS - self._clock.boot_ns()
                await asyncio.sleep(min(max(0, gap_ns), _LOOK_GAP_NS) / 1_000_000_000)
                await self.look()
            elif (error := self._tried[1]) is not None:
                raise OSError(str(error)) from error

    async def find_file(self, file_id: str) -> StoredFile | None:
        """File by its id, which another gateway may just have taken. Raises OSError."""
        if file_id not in self.files and self.store.is_shared and is_file_id(file_id):
            await self._look_anew()
        file = self.files.get(file_id)
        return None if file is None or file.upload else file

    async def find_upload(self, upload_id: str) -> UploadInParts | None:
        """Upload in parts by its id, which another gateway may just have begun. Raises OSError."""
        if upload_id not in self.uploads and self.store.is_shared and is_upload_id(upload_id):
            await self._look_anew()
        return self.uploads.get(upload_id)

    async def find_parts(self, upload_id: str, part_ids: Iterable[str]) -> list[StoredFile | None]:
        """Parts of an upload, which other gateways may just have taken, in order; None for one that it does not have.
        Raises OSError."""
        wanted = tuple(part_ids)
        if self.store.is_shared and not self.parts.get(upload_id, {}).keys() >= {*wanted}:
            await self._look_anew()
        known = self.parts.get(upload_id, {})
        return [known.get(each) for each in wanted]

    async def find_batch(self, batch_id: str) -> ClientBatch | None:
        """Batch by its id, which another gateway may just have taken. Raises OSError."""
        if batch_id not in self.batches and self.store.is_shared and is_batch_id(batch_id):
            await self._look_anew()
        return self.batches.get(batch_id)

    def _take_in(self, changes: StoreChanges, asked_ns: int) -> None:
        if changes.revision < self._revision:
            raise RowsOutdated("the store has lost its last changes")
        for row_id in changes.gone:
            if row_id in self.files:
                self._forget_file(row_id)
            self._forget_batch(row_id)
            self.uploads.pop(row_id, None)
        for file in changes.files:
            self._remember_file(file)
        for upload in changes.uploads:
            self.uploads[upload.id] = upload
        for row in changes.batches:
            self._take_in_row(row)
        self._revision = changes.revision
        has_lapsed = self.leases.saw(changes.holdings, asked_ns=asked_ns, answered_ns=self._clock.boot_ns())
        if changes.batches or changes.gone or has_lapsed:
            self.news.wake()

    def _take_in_row(self, row: BatchRow) -> None:
        batch, batch_id = row.batch, row.batch.id
        if self.leases.holding(batch_id) is not None and (known := self.batches.get(batch_id)) is not None:
            batch = replace(batch, completed=known.completed, failed=known.failed)  # the holder's own are newer
        self.batches[batch_id] = batch
        self._versions[batch_id] = row.version
        self.owners[batch_id] = row.owner
        if batch.has_ended:
            self._drop_result_sizes(batch)

    # Files

    async def keep_file(self, upload: OpenUpload, file: StoredFile, completed: UploadInParts | None = None) -> None:
        """Keep an upload: its content, then its row, with the upload in parts that it completes, if any. It is kept as
        well if the caller is cancelled while its row is stored. Raises RowOutdated where an upload in parts is not
        pending any more, and OSError."""
        await self.in_files(self.folder.finish, upload, file.id)
        learn = partial(self._remember_completed, file, completed)
        try:
            await self._do_and_know(learn, self.store.put_file, file, completed)
        except BaseException as error:
            if file.id not in self.files:
                self._undecided[file.id] = file, completed
                with suppress(OSError):
                    await self._decide(file, completed)
            if completed is None or file.id not in self.files or not isinstance(error, OSError):
                raise

    def has_content(self, file_id: str) -> bool:
        """True if a file is kept, or may be."""
        return file_id in self.files or file_id in self._undecided

    async def decide(self) -> None:
        """Find out which files are kept whose storing was not answered. Raises OSError."""
        for file, completed in list(self._undecided.values()):
            await self._decide(file, completed)

    async def _decide(self, file: StoredFile, completed: UploadInParts | None) -> None:
        """Learn that a file has completed its upload, or delete it: its row first, as a row without content would count
        and be listed. Raises OSError."""
        if completed is not None and await self.do(self.store.has_file, file.id):
            self._remember_completed(file, completed)
        elif file.id not in self.files:
            with suppress(FileInUse):  # a client has found it at another gateway
                await self.do(self.store.delete_file, file.id)
                await self._delete_content([file])
                self.sizes.drop(file.id)
        self._undecided.pop(file.id, None)

    def _remember_completed(self, file: StoredFile, completed: UploadInParts | None) -> None:
        self._remember_file(file)
        if completed is not None:
            self.uploads[completed.id] = completed

    def _remember_file(self, file: StoredFile) -> None:
        self.files[file.id] = file
        if file.upload:
            self.parts.setdefault(file.upload, {})[file.part_id] = file
        self.sizes.put(file.id, file.tenant, file.size)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file's row, and then its content; also if the caller is cancelled while its row is deleted. Raises
        FileInUse, and OSError; content that is left then is swept later."""
        if (file := self.files.get(file_id)) is not None:
            await self._delete_files([file], self.store.delete_file, file_id)

    async def delete_parts(self, upload_id: str) -> None:
        """Delete the parts of an upload that has ended, as `delete_file` does. Raises OSError."""
        if parts := list(self.parts.get(upload_id, {}).values()):
            await self._delete_files(parts, self.store.delete_parts, [each.id for each in parts])

    async def _delete_files(self, files: Sequence[StoredFile], work: Callable[..., None], told: object) -> None:
        def forget() -> None:
            for each in files:
                self._forget_file(each.id)

        try:
            await self._do_and_know(forget, work, told)
        except OSError:
            if not self.store.is_shared and not any(self.is_used(each.id) for each in files):
                await self._delete_content(files)  # room is freed even where the database cannot grow
            raise
        finally:
            if not any(each.id in self.files for each in files):
                await self._delete_content(files)

    async def _delete_content(self, files: Iterable[StoredFile]) -> None:
        def delete() -> None:
            for file in files:
                for name in file.stored_names:
                    self.folder.delete(name)

        await self.in_files(delete)

    def _forget_file(self, file_id: str) -> None:
        file = self.files.pop(file_id, None)
        if file is not None and (parts := self.parts.get(file.upload)) is not None:
            parts.pop(file.part_id, None)
            if not parts:
                del self.parts[file.upload]
        self.sizes.drop(file_id)

    def is_used(self, file_id: str) -> bool:
        """True while a batch that has not ended reads the file."""
        return any(each.input_file_id == file_id and not each.has_ended for each in self.batches.values())

    # Uploads in parts

    async def put_upload(self, upload: UploadInParts) -> None:
        """Keep a new upload, or one that was cancelled. It is kept as well if the caller is cancelled meanwhile. Raises
        RowOutdated for one that is not pending any more."""

        def learn() -> None:
            self.uploads[upload.id] = upload

        work = self.store.end_upload if upload.id in self.uploads else self.store.put_upload
        await self._do_and_know(learn, work, upload)

    async def delete_upload(self, upload_id: str) -> None:
        """Delete an upload, without its parts. It is forgotten as well if the caller is cancelled meanwhile."""

        def forget() -> None:
            self.uploads.pop(upload_id, None)

        await self._do_and_know(forget, self.store.delete_upload, upload_id)

    # Batches

    async def put_new(self, batch: ClientBatch) -> None:
        """Keep a new batch. It is kept as well if the caller is cancelled meanwhile, or if the store's answer is lost
        and its row stands. Raises FileMissing, and OSError."""
        learn = partial(self._remember, batch, 1, ())
        try:
            await self._do_and_know(learn, self.store.put_new, batch)
        except OSError:
            if not await self.do(self.store.has_batch, batch.id):
                raise
            if self.store.is_shared:
                await self._look_anew()
            else:
                learn()

    async def change(
        self, batch_id: str, change: Callable[[ClientBatch], ClientBatch], *, is_holder: bool = True
    ) -> ClientBatch:
        """Change a batch once the change is stored: after an OSError nothing has changed here. `change` is asked again
        where another gateway was faster. A cancelled caller's change is carried out if it was stored. Raises LeaseLost
        where `is_holder`, and the batch is not held here."""
        for _ in range(_CHANGES_MAX):
            if (before := self.batches.get(batch_id)) is None:
                break
            if (changed := change(before)) == before:
                return before
            version, holding = self._versions[batch_id], self._held(batch_id) if is_holder else None
            try:
                await self.do(self.store.put_batch, changed, version, holding)
            except RowOutdated:
                await self.look()
                continue
            except asyncio.CancelledError as cancelled:
                if cancelled.__cause__ is None:
                    self._change_here(batch_id, change, version + 1)
                raise
            return self._change_here(batch_id, change, version + 1)
        raise RowOutdated(batch_id)

    def _change_here(self, batch_id: str, change: Callable[[ClientBatch], ClientBatch], version: int) -> ClientBatch:
        self._remember(changed := change(self.batches[batch_id]), version, ())
        return changed

    async def end(self, batch: ClientBatch, files: Iterable[StoredFile] = ()) -> None:
        """Keep a batch that has ended, with its files, and hold it no longer. It is kept as well if the caller is
        cancelled meanwhile. Raises LeaseLost, also where the batch is not held here."""
        holding, files = self._held(batch.id), tuple(files)
        version = self._versions[batch.id]
        learn = partial(self._remember, batch, version + 1, files)
        await self._do_and_know(learn, self.store.put_batch, batch, version, holding, files)

    def _held(self, batch_id: str) -> BatchHolding:
        if (holding := self.leases.holding(batch_id)) is None:
            raise LeaseLost(batch_id)
        return holding

    def _remember(self, batch: ClientBatch, version: int, files: Iterable[StoredFile]) -> None:
        self.batches[batch.id] = batch
        self._versions[batch.id] = version
        self.owners.setdefault(batch.id, "")
        for file in files:
            self._remember_file(file)
        if batch.has_ended:
            self.leases.gave_up(batch.id)
            self.owners[batch.id] = ""
            self._drop_result_sizes(batch)
        self.news.wake()

    def _drop_result_sizes(self, batch: ClientBatch) -> None:
        for file_id in batch.result_ids:
            if file_id not in self.files:
                self.sizes.drop(file_id)

    async def delete_batch(self, batch_id: str) -> None:
        """Delete a batch. It is forgotten as well if the caller is cancelled meanwhile."""
        await self._do_and_know(partial(self._forget_batch, batch_id), self.store.delete_batch, batch_id)

    def _forget_batch(self, batch_id: str) -> None:
        if (batch := self.batches.get(batch_id)) is not None:
            self._drop_result_sizes(batch)
        for known in (self.batches, self.owners, self._versions):
            known.pop(batch_id, None)
        self.leases.gave_up(batch_id)

    # Holdings

    def not_elsewhere(self) -> list[ClientBatch]:
        """Batches that no other gateway runs."""
        return [
            each
            for each in self.batches.values()
            if not self.owners.get(each.id) or self.leases.holding(each.id) is not None
        ]

    def may_take(self, batch_id: str) -> bool:
        """True if no other gateway holds a batch, or its holding has lapsed."""
        return not self.leases.is_anothers(batch_id)

    async def take(self, batch_id: str) -> TakenBatch | None:
        """Hold a batch. None: another gateway was faster, or there is no such batch any more."""
        try:
            taken = await self.do(self.store.take, batch_id, self.leases.mark_to_take(batch_id))
        except BatchMissing:
            self._forget_batch(batch_id)
            return None
        if taken is None:
            await self.look()
            return None
        self._take_in_row(taken.row)
        self.leases.took(taken.holding)
        return taken

    async def release(self, batch_id: str) -> None:
        """Give up a holding, if there is one."""
        if (holding := self.leases.holding(batch_id)) is not None:
            self.leases.gave_up(batch_id)
            self.owners[batch_id] = ""
            await self.do(self.store.release, holding)

    async def renew(self, line_offsets: Callable[[str], int]) -> list[BatchHolding]:
        """Renew all holdings, each with the offset in the input file before which each line has a result. Returns those
        that are lost."""
        held = self.leases.held
        if not held:
            return []
        still = await self.do(self.store.renew, [(each, line_offsets(each.batch_id)) for each in held])
        return self.leases.renewed(held, still)
