"""Results of one batch on their way to its files: which lines have one, and how many are stored.

Results are stored in groups beside the batch's state; many groups together become a part of a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from os import urandom
from typing import Any

from msgspec.structs import replace

from gateway.features.batches.book import BatchBook
from gateway.features.batches.files import OpenUpload
from gateway.features.batches.lease import BatchHolding
from gateway.features.batches.lines import LineResult, digest_of
from gateway.features.batches.state import ClientBatch, StoredPart
from gateway.features.batches.store import DIGEST_BYTES, ResultGroup, ResultKind
from mesh.task_group import TaskGroup
from mesh.waiter import Waiter

_RETRY_WRITE_S = 2.0
_RESULTS_MAX = 256
"""Results that may wait to be written, beyond those of running lines."""
_GROUP_BYTES = 4 * 1024 * 1024
"""Bytes of results above which no further one joins their group."""
_PART_BYTES = 8 * 1024 * 1024
"""Bytes of results in the database from which they become a part of the file."""


class _Writer:
    """Results of one kind that are still to be written."""

    def __init__(
        self,
        book: BatchBook,
        holding: BatchHolding,
        kind: ResultKind,
        file_id: str,
        *,
        on_written: Callable[[int], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._book = book
        self._holding = holding
        self._kind = kind
        self._file_id = file_id
        self._on_written = on_written
        self._on_fault = on_fault
        self._waiting: list[tuple[LineResult, asyncio.Future[None]]] = []
        self._news = Waiter()
        self._written = Waiter()
        self._last = 0
        """Number of the last group that is stored."""
        self._moved = 0
        """Number of the last group that was seen to be in a part."""
        self._moving = asyncio.Lock()
        self.lines = 0
        """Lines whose result is stored."""
        self.size = 0
        """Bytes of these results."""
        self._tail_bytes = 0
        """Bytes of results that are in no part."""

    async def reconcile(self) -> tuple[list[bytes], int]:
        """Learn what is stored: the digests of the lines that have a result, and how many of these did not run."""
        digests: list[bytes] = []
        unrun = 0
        read = partial(self._book.store.groups, self._holding.batch_id, self._kind, with_data=False)
        while groups := await self._book.do(read, self._last):
            for group in groups:
                found = group.digests
                digests += [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]
                unrun += group.unrun
                self.size += group.size
            self._last = groups[-1].number
        self.lines = len(digests)
        self._tail_bytes = self.size - sum(each.size for each in await self.parts())
        return digests, unrun

    def put(self, result: LineResult) -> asyncio.Future[None]:
        """Have a result written. The future is done once it is stored; whether it is awaited does not matter."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, written))
        self._news.wake()
        return written

    async def until_fewer_than(self, results: int) -> None:
        """Wait until fewer results wait. Only one task may wait at a time."""
        while len(self._waiting) >= results:
            await self._written.wait()

    async def run(self) -> None:
        """Write what waits, until cancelled. A store that fails is tried again. Raises LeaseLost."""
        while True:
            while not self._waiting:
                await self._news.wait()
            group = self._next_group()
            lines = len(group.digests) // DIGEST_BYTES
            await self._persist(partial(self._append, group, self.lines + lines))
            written, self._waiting = self._waiting[:lines], self._waiting[lines:]
            self._last, self.size = group.number, self.size + group.size
            self.lines += lines
            self._tail_bytes += group.size
            self._on_written(lines)
            self._written.wake()
            for _, each in written:
                if not each.done():
                    each.set_result(None)
            if self._tail_bytes >= _PART_BYTES:
                await self.move()

    async def _append(self, group: ResultGroup, lines: int) -> None:
        await self._book.do(self._book.store.append, self._holding, self._kind, group, lines)

    def _next_group(self) -> ResultGroup:
        """First results that wait. The same group is tried again until it is stored: an answer may be lost."""
        texts: list[bytes] = []
        size = 0
        for result, _ in self._waiting:
            texts.append(result.encoded())
            size += len(texts[-1])
            if size >= _GROUP_BYTES:
                break
        results = [result for result, _ in self._waiting[: len(texts)]]
        return ResultGroup(
            number=self._last + 1,
            digests=b"".join([digest_of(each.custom_id) for each in results]),
            unrun=sum(not each.has_run for each in results),
            size=size,
            data=b"".join(texts),
        )

    async def move(self) -> None:
        """Make a part of the file of the results that are in none."""
        async with self._moving:
            if self._tail_bytes:
                await self._persist(self._move)

    async def parts(self) -> tuple[StoredPart, ...]:
        return await self._book.do(self._book.store.parts, self._holding.batch_id, self._kind)

    async def _move(self) -> None:
        """Make one part. Each try has a name of its own, so that none writes to a file of another: the part whose row
        is stored first counts."""
        book, last = self._book, self._last
        name = f"{self._file_id}.{self._holding.term}-{last}-{urandom(8).hex()}"
        part, upload = StoredPart(name, self._tail_bytes), None
        try:
            upload = await book.in_files(book.folder.begin, name)
            is_whole = await self._copy_tail(upload) == part.size
            if is_whole:
                await book.in_files(book.folder.finish, upload, name)
        except BaseException:
            await book.in_files(book.folder.drop, upload, name)
            raise
        if is_whole:
            await book.do(book.store.add_part, self._holding, self._kind, last, part)
        else:  # the row of an earlier try is stored, whose answer was lost
            await book.in_files(book.folder.drop, upload, name)
        self._moved, self._tail_bytes = last, 0

    async def _copy_tail(self, upload: OpenUpload) -> int:
        """Write the results that are in no part. Returns their bytes."""
        book, after, copied = self._book, self._moved, 0
        read = partial(book.store.groups, self._holding.batch_id, self._kind, with_data=True)
        while groups := await book.do(read, after):
            for group in groups:
                await book.in_files(upload.write, group.data)
                copied += group.size
            after = groups[-1].number
        return copied

    async def _persist(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do work until it succeeds."""
        while True:
            try:
                await work()
            except OSError as error:
                self._on_fault(str(error))
                await asyncio.sleep(_RETRY_WRITE_S)
            else:
                self._on_fault("")
                return


class BatchResults:
    """Results of one batch that this gateway holds: which lines have one, and how many of each kind are stored."""

    def __init__(
        self,
        book: BatchBook,
        batch: ClientBatch,
        on_written: Callable[[str, int, int], None],
        on_fault: Callable[[str], None],
    ) -> None:
        holding = book.leases.holding(batch.id)
        assert holding is not None, "it was taken"
        self._book = book
        self._batch = batch
        self._on_written = on_written
        self._done: set[bytes] = set()
        self.unrun = 0
        """Lines with an error since their batch ended before they ran."""
        output_id, error_id = batch.result_ids
        self._outputs = _Writer(
            book, holding, ResultKind.OUTPUT, output_id, on_written=self._completed_more, on_fault=on_fault
        )
        self._errors = _Writer(
            book, holding, ResultKind.ERROR, error_id, on_written=self._failed_more, on_fault=on_fault
        )

    @property
    def lines(self) -> int:
        """Lines that have a result."""
        return len(self._done)

    def has(self, custom_id: str) -> bool:
        return digest_of(custom_id) in self._done

    async def reconcile(self) -> None:
        """Learn which lines have a result. Called before `run`."""
        outputs, _ = await self._outputs.reconcile()
        errors, self.unrun = await self._errors.reconcile()
        self._done.update(outputs, errors)
        self._show()

    async def put(self, result: LineResult) -> None:
        """Write a result; it is stored when this returns. A cancelled caller's result is written all the same."""
        self._done.add(digest_of(result.custom_id))
        await (self._outputs if result.is_success else self._errors).put(result)

    async def put_unrun(self, result: LineResult) -> None:
        """Have the error of a line written that does not run, and wait only where many are to be written."""
        self._done.add(digest_of(result.custom_id))
        self.unrun += 1
        _ = self._errors.put(result)
        await self._errors.until_fewer_than(_RESULTS_MAX)

    async def until_written(self) -> tuple[int, int]:
        """Wait until each result is stored. Returns how many are in the output and in the error file."""
        for each in (self._outputs, self._errors):
            await each.until_fewer_than(1)
        return self._outputs.lines, self._errors.lines

    async def parts(self) -> tuple[tuple[StoredPart, ...], tuple[StoredPart, ...]]:
        """Parts of the output and the error file, once each result is written."""
        for each in (self._outputs, self._errors):
            await each.move()
        return await self._outputs.parts(), await self._errors.parts()

    async def run(self) -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(self._outputs.run())
            tasks.create_task(self._errors.run())

    def _completed_more(self, lines: int) -> None:
        self._on_written(self._batch.id, lines, 0)
        self._show()

    def _failed_more(self, lines: int) -> None:
        self._on_written(self._batch.id, 0, lines)
        self._show()

    def _show(self) -> None:
        batches, batch = self._book.batches, self._batch
        if batch.id in batches:
            counts = {"completed": self._outputs.lines, "failed": self._errors.lines}
            batches[batch.id] = replace(batches[batch.id], **counts)
        for file_id, writer in zip(batch.result_ids, (self._outputs, self._errors), strict=True):
            self._book.sizes.put(file_id, batch.tenant, writer.size)
