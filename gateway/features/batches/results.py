"""Results of one batch on their way to its files: which lines have one, and how many are on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gateway.features.batches.book import BatchBook
from gateway.features.batches.lines import LineResult, digest_of
from gateway.features.batches.state import ClientBatch
from gateway.features.batches.store import ResultFile
from mesh.task_group import TaskGroup
from mesh.threads import finish_in_thread
from mesh.waiter import Waiter

_RETRY_WRITE_S = 2.0
_RESULTS_MAX = 256
"""Results that may wait to be written, beyond those of running lines."""


class _Writer:
    """Results for one file that are still to be written."""

    def __init__(self, path: Path, on_written: Callable[[int], None], on_fault: Callable[[str], None]) -> None:
        self._file = ResultFile(path)
        self._on_written = on_written
        self._on_fault = on_fault
        self._waiting: list[tuple[LineResult, asyncio.Future[None]]] = []
        self._news = Waiter()
        self._written = Waiter()

    def reconcile(self) -> list[tuple[bytes, bool]]:
        """Digests of the lines that have a result in the file, and whether each has run; blocks."""
        return list(self._file.reconcile())

    def put(self, result: LineResult) -> asyncio.Future[None]:
        """Have a result written. The future is done once it is on the disk; whether it is awaited does not matter."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, written))
        self._news.wake()
        return written

    @property
    def size(self) -> int:
        return self._file.size

    async def until_fewer_than(self, results: int) -> None:
        """Wait until fewer results wait. Only one task may wait at a time."""
        while len(self._waiting) >= results:
            await self._written.wait()

    async def run(self) -> None:
        """Write what waits, until cancelled. A disk that fails is tried again."""
        while True:
            while not self._waiting:
                await self._news.wait()
            batch = list(self._waiting)
            try:
                await finish_in_thread(self._file.append, [each for each, _ in batch])
            except OSError as error:
                self._on_fault(str(error))
                await asyncio.sleep(_RETRY_WRITE_S)
                continue
            self._on_fault("")
            del self._waiting[: len(batch)]
            self._on_written(len(batch))
            self._written.wake()
            for _, written in batch:
                if not written.done():
                    written.set_result(None)


class BatchResults:
    """Results of one batch: which lines have one, and how many of each kind are on the disk."""

    def __init__(
        self,
        book: BatchBook,
        batch: ClientBatch,
        on_written: Callable[[str, int, int], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._book = book
        self._batch = batch
        self._on_written = on_written
        self._done: set[bytes] = set()
        self._completed = self._failed = 0
        self.unrun = 0
        """Lines with an error since their batch ended before they ran."""
        self._outputs = _Writer(book.store.path(batch.output_file_id), self._completed_more, on_fault)
        self._errors = _Writer(book.store.path(batch.error_file_id), self._failed_more, on_fault)

    @property
    def lines(self) -> int:
        """Lines that have a result."""
        return len(self._done)

    def has(self, custom_id: str) -> bool:
        return digest_of(custom_id) in self._done

    async def reconcile(self) -> None:
        """Learn which lines have a result. Called before `run`."""
        outputs = await finish_in_thread(self._outputs.reconcile)
        errors = await finish_in_thread(self._errors.reconcile)
        self._done.update(digest for digest, _ in (*outputs, *errors))
        self.unrun = sum(not has_run for _, has_run in errors)
        self._completed, self._failed = len(outputs), len(errors)
        self._show()

    async def put(self, result: LineResult) -> None:
        """Write a result; it is on the disk when this returns. A cancelled caller's result is written all the same."""
        self._done.add(digest_of(result.custom_id))
        await (self._outputs if result.is_success else self._errors).put(result)

    async def put_unrun(self, result: LineResult) -> None:
        """Have the error of a line written that does not run, and wait only where many are to be written."""
        self._done.add(digest_of(result.custom_id))
        self.unrun += 1
        _ = self._errors.put(result)
        await self._errors.until_fewer_than(_RESULTS_MAX)

    async def until_written(self) -> tuple[int, int]:
        """Wait until each result is on the disk. Returns how many are in the output and in the error file."""
        for each in (self._outputs, self._errors):
            await each.until_fewer_than(1)
        return self._completed, self._failed

    async def run(self) -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(self._outputs.run())
            tasks.create_task(self._errors.run())

    def _completed_more(self, lines: int) -> None:
        self._completed += lines
        self._on_written(self._batch.id, lines, 0)
        self._show()

    def _failed_more(self, lines: int) -> None:
        self._failed += lines
        self._on_written(self._batch.id, 0, lines)
        self._show()

    def _show(self) -> None:
        batches, batch = self._book.batches, self._batch
        batches[batch.id] = replace(batches[batch.id], completed=self._completed, failed=self._failed)
        for file_id, writer in ((batch.output_file_id, self._outputs), (batch.error_file_id, self._errors)):
            self._book.sizes.put(file_id, batch.tenant, writer.size)
