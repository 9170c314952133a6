"""Executes batches: reads lines, sends each through the gateway as its client's request, and writes results.

The store says which lines are done: after a crash, a line with a stored result is not sent again. A batch runs here
only while this gateway holds it; nothing is written for one whose holding is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, islice
from os import urandom
from typing import BinaryIO, Protocol

from msgspec import Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import ModelName, RequestId, ServiceClass, TenantName
from gateway.door.errors import CLASS_NOT_ALLOWED, INVALID_API_KEY
from gateway.door.parse import Caller, fresh_request_id
from gateway.door.shapes import error_body, shape_of
from gateway.features.batches.book import BatchBook, RowsOutdated
from gateway.features.batches.checking import MODEL_NOT_FOUND, check_file
from gateway.features.batches.chunks import LineChunk, LineChunks
from gateway.features.batches.classes import LineClasses
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.database import LeaseLost, Refused
from gateway.features.batches.forecast import LineRate, Urgency, has_time_to_spare, may_be_urgent, urgent_lines
from gateway.features.batches.lines import (
    BATCH_CANCELLED,
    BATCH_EXPIRED,
    LineChecker,
    LineRequest,
    LineResult,
    ResultError,
    is_error,
    read_line,
    result_of,
    wait_before_retry_s,
)
from gateway.features.batches.places import LinePlaces
from gateway.features.batches.results import BatchResults
from gateway.features.batches.state import (
    INPUT_LOST,
    INTERNAL_ERROR,
    WINDOW_S,
    BatchStatus,
    ClientBatch,
    LineFault,
    StoredFile,
    StoredPart,
    UploadInParts,
    UploadStatus,
    ended,
    given_up,
    is_hopeless,
    lines_over,
    next_to_check,
    next_to_run,
    validated,
    wait_after_error_s,
)
from gateway.features.batches.store import FileInUse
from gateway.features.extension import KeyInForce
from gateway.http1.local import LocalExchange
from gateway.http1.server import Exchange
from gateway.request.callers import ClientKey
from mesh.clock import Clock
from mesh.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
_TICK_S = 5.0
"""Longest time between two looks at the batches' windows."""
_ENDS_MAX = 2
"""Batches without lines to run that are held and brought to their end at once: each holds a digest per line."""
_READ_LINES = 32
_RENEWALS = 5
"""Renewals of a holding in the length of a lease, at least."""
_LOOK_S = 1.0
"""Longest time between two looks at what other gateways have changed."""
_SILENCE_MAX_NS = 600 * _SECOND_NS
"""Time without an answer of the store after which it is opened anew."""
_LEFT_S = 30.0
"""Time for which a batch is left, to the gateways that share it if there are any, since its key or model is not known
here."""
_MODEL_S = 600
"""Age of a batch, and time since the gateway began, from which a model that is not known here does not exist."""
_NO_MODEL = "its model is not known here"
_UPLOAD_KEPT_S = 24 * 3600
"""Time for which an upload in parts is remembered beyond its window: its completion may be asked for again."""
_CLEAN_S = 1.0
"""Time between two looks at every file, and at every batch that has ended."""
_SWEEP_NS = 6 * 3600 * _SECOND_NS
"""Time between two looks at every name in a shared place of files."""
_FORGET_NS = 3600 * _SECOND_NS
"""Time after the try of a stopped batch that got on from which its next stop counts as its first."""
_RETRY_AFTER = "retry-after-ms: "
_TAKEN_BACK_S = 1.0
"""Time after which a line that was taken back in a drain is sent again: a drain may be lifted."""


class ServesCalls(Protocol):
    """Clients' API, as a batch uses it."""

    def serve_for(self, exchange: Exchange, path: str, caller: Caller) -> None: ...

    def give_up(self, exchange: Exchange) -> None: ...

    def models_of(self, caller: Caller) -> list[ModelName]: ...


class _Stop(Struct, frozen=True):
    """Stop of a batch: its status then, the tries that failed so far, and the time of the next one."""

    status: BatchStatus
    tries: int
    again_ns: int
    is_over: bool = False
    """True once the batch has got on since; its tries count for a while longer."""


class InputUnreadable(Exception):
    """The input file of one batch cannot be read; the store and the result files may well be."""


class BatchLeft(Exception):
    """A key or a model is not known here, and may be later, or to another gateway that shares the batch."""


class LineTakenBack(Exception):
    """The gateway drains, and a line that waited for an engine was taken back."""


class LineCounts:
    """Lines that ended since the start of the process, and urgent tries."""

    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0
        self.taken_over = 0
        """Batches taken over from gateways that were silent."""
        self.lost = 0
        """Batches that another gateway has taken over from this one."""
        self.urgent = 0
        """Tries that were sent as class `interactive`."""


class BatchRunner:
    """Runs the batches of a book, within the limits of the config."""

    def __init__(
        self,
        config: BatchesConfig,
        book: BatchBook,
        clock: Clock,
        log: FilteringBoundLogger,
        may_run: Callable[[ClientBatch], bool] = lambda _: True,
        *,
        waits_in_drain: Callable[[RequestId], bool] = lambda _: False,
    ) -> None:
        """`may_run`: true if the policy in force lets the requests of a batch enter this region. `waits_in_drain`: true
        if the gateway drains, and a request waits for an engine."""
        self.counts = LineCounts()
        self.write_fault = ""
        """Reason why results cannot be written at present; empty while they can be."""
        self.store_fault = ""
        """Reason why the store does not answer at present; empty while it does."""
        self._delete_fault = ""
        self._opened_s = 0
        """Time at which the book was opened last."""
        self._may_run = may_run
        self._waits_in_drain = waits_in_drain
        self._sent: dict[RequestId, asyncio.Future[bool]] = {}
        """Ends of the lines that are sent and not answered yet; False: the line is taken back."""
        self._config = config
        self._book = book
        self._clock = clock
        self._log = log
        self._api: ServesCalls | None = None
        self._key_in_force: KeyInForce | None = None
        self._has_api = asyncio.Event()
        self._places = LinePlaces(config.requests_max)
        self._turns: dict[TenantName, int] = {}
        """Number of the last check of an input file, by tenant with batches."""
        self._turn = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks of batches that are validated or run."""
        self._stops: dict[str, _Stop] = {}
        """Batches that met an error of this gateway's own, until they are over."""
        self._classes: dict[str, LineClasses] = {}
        """Classes of the lines of batches that run."""
        self._chunks: dict[str, LineChunks] = {}
        """Places in the input files of batches that this gateway holds."""
        self._lines: dict[str, asyncio.Task[Exception | None]] = {}
        """Tasks that send lines, which end early when their batch is cancelled or expires."""

    def meet_clients(self, api: ServesCalls, key_in_force: KeyInForce | None) -> None:
        self._api, self._key_in_force = api, key_in_force
        self._has_api.set()

    async def run(self) -> None:
        """Open the book, and run its batches until cancelled. Raises OSError."""
        await self._has_api.wait()
        try:
            await self._open()
            async with TaskGroup() as tasks:
                tasks.create_task(self._hold())
                tasks.create_task(self._clean())
                while True:
                    self._stop_forgotten()
                    self._stop_lines()
                    self._take_back()
                    if not self.store_fault:
                        self._begin(tasks)
                    await self._wait_for_news()
        finally:
            self._tasks.clear()
            self._lines.clear()
            self._chunks.clear()
            await self._book.close()

    async def _open(self) -> None:
        """Open the book. Raises OSError, once its reason is logged and shown."""
        try:
            await self._book.open()
        except OSError as error:
            self._store_failed(error)
            raise
        self.store_fault, self._opened_s = "", self.now_s

    async def _hold(self) -> None:
        """Renew holdings and take in what other gateways changed, until cancelled. A store that does not answer is
        asked again; after long, or where what is known here cannot follow it, its rows are read anew. Raises OSError
        then."""
        interval_s = min(self._book.lease_ns / _RENEWALS / _SECOND_NS, _LOOK_S)
        answered_ns = self._clock.boot_ns()
        while True:
            await asyncio.sleep(interval_s)
            try:
                for each in await self._book.renew(self._line_offset):
                    if (task := self._tasks.get(each.batch_id)) is not None:
                        task.cancel()
                    self._lost(each.batch_id)
                if self._book.store.is_shared:
                    await self._book.look()
            except OSError as error:
                if isinstance(error, RowsOutdated) or self._clock.boot_ns() - answered_ns > _SILENCE_MAX_NS:
                    raise
                self._store_failed(error)
            else:
                if self.store_fault:
                    self._book.news.wake()
                self.store_fault, answered_ns = "", self._clock.boot_ns()

    def _store_failed(self, error: OSError) -> None:
        if not self.store_fault:
            self._log.error("batch_store_unavailable", reason=str(error))
        self.store_fault = str(error)

    def _line_offset(self, batch_id: str) -> int:
        chunks = self._chunks.get(batch_id)
        return 0 if chunks is None else chunks.offset

    def _lost(self, batch_id: str) -> None:
        self._log.warning("batch_lost", batch=batch_id)
        self.counts.lost += 1

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._book.news.wait()
        except TimeoutError:
            pass

    @property
    def stopped(self) -> int:
        """Batches that met an error of this gateway's own, and have not got on since."""
        return sum(not each.is_over and self._is_open(batch_id) for batch_id, each in self._stops.items())

    def _is_open(self, batch_id: str) -> bool:
        """True if a batch is kept and has not ended."""
        batch = self._book.batches.get(batch_id)
        return batch is not None and not batch.has_ended

    @property
    def now_s(self) -> int:
        return self._clock.wall_ns() // _SECOND_NS

    async def _clean(self) -> None:
        """Delete what is old each second, and at times remains of gateways that share the files, until cancelled. A
        place of files that fails is tried again later, and stops no batch."""
        sweep_ns = self._clock.now_ns()
        while True:
            fault = ""
            try:
                await self._delete_old()
                if self._book.store.is_shared and self._clock.now_ns() >= sweep_ns:
                    sweep_ns = self._clock.now_ns() + _SWEEP_NS
                    await self._book.sweep()
            except OSError as error:
                fault = str(error)
            if fault and not self._delete_fault:
                self._log.error("batch_files_not_deleted", reason=fault)
            self._delete_fault = fault
            await asyncio.sleep(_CLEAN_S)

    async def _delete_old(self) -> None:
        now_s = self.now_s
        self._stops = {batch_id: stop for batch_id, stop in self._stops.items() if self._is_open(batch_id)}
        keep_s = self._config.keep_ns // _SECOND_NS
        await self._book.decide()
        for file in [each for each in self._book.files.values() if each.expires_s <= now_s]:
            if file.upload not in self._book.uploads and not self._book.is_used(file.id):
                with suppress(FileInUse):  # a batch of another gateway reads it
                    await self._book.delete_file(file.id)
        await self._delete_old_uploads(now_s)
        for batch in [each for each in self._book.batches.values() if each.has_ended or self._is_orphan(each)]:
            if batch.expires_s + keep_s <= now_s:
                await self._book.delete_batch(batch.id)

    async def _delete_old_uploads(self, now_s: int) -> None:
        """Delete the parts of uploads that have ended, and the uploads after a day, or beyond a tenant's limit."""
        ended: dict[TenantName, list[UploadInParts]] = {}
        for upload in list(self._book.uploads.values()):
            if upload.status_at(now_s) is not UploadStatus.PENDING:
                await self._book.delete_parts(upload.id)
                ended.setdefault(upload.tenant, []).append(upload)
        for own in ended.values():
            own.sort(key=lambda each: -each.created_s)
            for place, upload in enumerate(own):
                if place >= self._config.tenant_ended_max or upload.expires_s + _UPLOAD_KEPT_S <= now_s:
                    await self._book.delete_upload(upload.id)

    def _is_over(self, batch: ClientBatch) -> bool:
        """True if no further line may run."""
        return batch.status is not BatchStatus.IN_PROGRESS or batch.expires_s <= self.now_s

    def _stop_forgotten(self) -> None:
        """End the tasks of batches that another gateway has deleted."""
        for batch_id, task in self._tasks.items():
            if batch_id not in self._book.batches:
                task.cancel()

    def _stop_lines(self) -> None:
        for batch_id, lines in self._lines.items():
            batch = self._book.batches.get(batch_id)
            if batch is None or self._is_over(batch):
                lines.cancel()

    def _take_back(self) -> None:
        """Take back lines that wait for an engine while the gateway drains, which would wait for them otherwise."""
        for request_id, over in self._sent.items():
            if not over.done() and self._waits_in_drain(request_id):
                over.set_result(False)

    def _begin(self, tasks: TaskGroup) -> None:
        idle = [each for each in self._book.batches.values() if self._is_idle(each)]
        self._begin_check(tasks, [each for each in idle if not each.is_checked])
        checked = [each for each in idle if each.is_checked]
        ends = sum(each.is_checked and self._is_over(each) for each in self._busy())
        for batch in [each for each in checked if self._is_over(each)][: max(0, _ENDS_MAX - ends)]:
            self._start(tasks, batch)
        while True:
            chosen = next_to_run(
                [each for each in checked if each.id not in self._tasks and not self._is_over(each)],
                [each for each in self._busy() if each.status is BatchStatus.IN_PROGRESS],
                self._config.batches_max,
                self._config.tenant_batches_max,
            )
            if chosen is None:
                return
            self._start(tasks, chosen)

    def _busy(self) -> list[ClientBatch]:
        """Batches with a task. One that has ended may be deleted before its task is over."""
        batches = self._book.batches
        return [batches[each] for each in self._tasks if each in batches]

    def _is_idle(self, batch: ClientBatch) -> bool:
        """True if something is to be done, and no task does it. A batch that met an error waits, unless its client
        cancelled it since."""
        if batch.has_ended or batch.id in self._tasks or not self._book.may_take(batch.id):
            return False
        is_running = not batch.is_cancelling and batch.expires_s > self.now_s
        if self._is_barred(batch) or (is_running and not (self._may_run(batch) and self._may_judge_key(batch))):
            return False
        stop = self._stops.get(batch.id)
        return stop is None or batch.status is not stop.status or stop.again_ns <= self._clock.now_ns()

    def _is_barred(self, batch: ClientBatch) -> bool:
        """True if only gateways of other regions may read the input of a batch and write its results, also at its end.
        A gateway with a folder alone ends each of its own."""
        return self._book.store.is_shared and not self._may_run(batch)

    def _is_orphan(self, batch: ClientBatch) -> bool:
        """True if a batch is barred here, and no gateway holds it."""
        return self._is_barred(batch) and self._book.may_take(batch.id)

    def in_line(self) -> list[tuple[ClientBatch, bool]]:
        """Batches with lines to run that run here, or would begin once there is a place, in the order in which they
        came, each with whether it runs."""
        found = [each for each in self._book.batches.values() if each.id in self._tasks or self._is_idle(each)]
        found = [each for each in found if not each.is_checked or not self._is_over(each)]
        found.sort(key=lambda each: (each.created_s, each.id))
        return [
            (each, each.id in self._tasks and each.is_checked)
            for each in found
            if not each.is_cancelling and each.expires_s > self.now_s
        ]

    def _begin_check(self, tasks: TaskGroup, waiting: list[ClientBatch]) -> None:
        """Have one input file checked at a time, of one tenant after another."""
        if not waiting or any(not each.is_checked for each in self._busy()):
            return
        tenants = {each.tenant for each in self._book.batches.values()}
        self._turns = {tenant: turn for tenant, turn in self._turns.items() if tenant in tenants}
        if (chosen := next_to_check(waiting, self._turns)) is not None:
            self._turn += 1
            self._turns[chosen.tenant] = self._turn
            self._start(tasks, chosen)

    def _start(self, tasks: TaskGroup, batch: ClientBatch) -> None:
        self._tasks[batch.id] = task = tasks.create_task(self._drive_apart(batch.id))
        task.add_done_callback(lambda _: self._over(batch.id))

    def _over(self, batch_id: str) -> None:
        self._tasks.pop(batch_id, None)
        self._book.news.wake()

    async def _drive_apart(self, batch_id: str) -> None:
        """Hold a batch, and drive it. An error of this gateway's own, or of its input file, stops it for a while, and
        no other one; so does a shared store that fails. One on this disk stops all. A batch that another gateway has
        taken over is left to it."""
        try:
            if not await self._take(batch_id):
                return
            try:
                await self._drive(batch_id)
                await self._drop_oldest(batch_id)
            finally:
                self._chunks.pop(batch_id, None)
                await self._book.release(batch_id)
        except Exception as error:  # an error that is not of the disk is this gateway's own
            if refusals := _refusals(error):
                self._book.leases.gave_up(batch_id)
                if any(isinstance(each, LeaseLost) for each in refusals):
                    self._lost(batch_id)
            elif (left := _left(error)) is not None:
                self._leave(batch_id, left)
            elif (disk_error := _disk_error(error)) is None:
                self._stop(batch_id, error)
            elif self._book.store.is_shared:
                self._book.leases.gave_up(batch_id)
                self._store_failed(disk_error)
            else:
                raise disk_error from error
        else:
            self._stops.pop(batch_id, None)

    async def _take(self, batch_id: str) -> bool:
        owner = self._book.owners.get(batch_id, "")
        if batch_id not in self._book.batches or (taken := await self._book.take(batch_id)) is None:
            return False
        if owner:
            self.counts.taken_over += 1
            self._log.warning("batch_taken_over", batch=batch_id, owner=owner, term=taken.holding.term)
        self._chunks[batch_id] = LineChunks(taken.line_offset)
        return True

    async def _drop_oldest(self, batch_id: str) -> None:
        """Delete the batches of a tenant that ended first, beyond its limit, where one has just ended. Of those that
        ended in one second, the one that just did is the last: its client has not seen it yet."""
        batch = self._book.batches.get(batch_id)
        if batch is None or not batch.has_ended:
            return
        ends = [each for each in self._book.batches.values() if each.tenant == batch.tenant and each.has_ended]
        ends.sort(key=lambda each: (each.ended_s, each.id == batch_id))
        for each in ends[: max(0, len(ends) - self._config.tenant_ended_max)]:
            await self._book.delete_batch(each.id)

    def _stop(self, batch_id: str, error: Exception) -> None:
        before, now_ns = self._stops.pop(batch_id, None), self._clock.now_ns()
        is_first = before is None or (before.is_over and before.again_ns + _FORGET_NS <= now_ns)
        tries = 1 if before is None or is_first else before.tries + 1
        wait_s = wait_after_error_s(tries)
        if self._is_open(batch_id):
            again_ns = now_ns + int(wait_s * _SECOND_NS)
            self._stops[batch_id] = _Stop(self._book.batches[batch_id].status, tries, again_ns)
        self._log.error("batch_stopped", batch=batch_id, retry_s=wait_s, exc_info=error)

    def _leave(self, batch_id: str, left: BatchLeft) -> None:
        if (batch := self._book.batches.get(batch_id)) is None:
            return
        if batch_id not in self._stops:
            self._log.warning("batch_left", batch=batch_id, reason=str(left))
        again_ns = self._clock.now_ns() + int(_LEFT_S * _SECOND_NS)
        self._stops[batch_id] = _Stop(batch.status, 0, again_ns, is_over=True)

    async def _drive(self, batch_id: str) -> None:
        """Take a batch as far as it goes now."""
        stop = self._stops.get(batch_id)
        if stop is not None and not stop.is_over and is_hopeless(self._book.batches[batch_id], stop.tries, self.now_s):
            await self._give_up(batch_id, INTERNAL_ERROR)
            return
        batch = self._book.batches[batch_id]
        if batch.has_ended:
            return
        with _of_input():
            has_lost_input = await self._book.has_lost(batch.input_file_id)
        if has_lost_input:
            self._log.error("batch_input_lost", batch=batch_id, file=batch.input_file_id)
            await self._give_up(batch_id, INPUT_LOST)
        elif not self._book.batches[batch_id].is_checked:
            await self._validate(batch_id)
        else:
            if batch.model and not self._is_over(batch) and not self._knows_model(batch, batch.model):
                self._leave_running(batch, _NO_MODEL)
            await self._run_and_finish(batch_id)

    async def _run_and_finish(self, batch_id: str) -> None:
        results = BatchResults(self._book, self._book.batches[batch_id], self._on_written, self._write_failed)
        await results.reconcile()
        self._book.rates[batch_id] = LineRate(self._clock.now_ns())
        self._classes[batch_id] = LineClasses()
        async with TaskGroup() as tasks:
            writing = tasks.create_task(results.run())
            try:
                await self._run_lines(tasks, batch_id, results)
                await self._finish(batch_id, results)
            finally:
                writing.cancel()
                self._book.rates.pop(batch_id, None)
                self._classes.pop(batch_id, None)

    def _on_written(self, batch_id: str, completed: int, failed: int) -> None:
        self.counts.completed += completed
        self.counts.failed += failed
        if (stop := self._stops.get(batch_id)) is not None:
            self._stops[batch_id] = replace(stop, is_over=True)
        if (rate := self._book.rates.get(batch_id)) is not None:
            rate.add(completed + failed, self._clock.now_ns())

    # Validation

    async def _validate(self, batch_id: str) -> None:
        batch = self._book.batches[batch_id]
        config = self._config
        checker = LineChecker(batch.endpoint, config.lines_max, config.line_max_bytes)
        with _of_input():
            faults = await asyncio.to_thread(self._check, batch.input_file_id, checker)
        if not faults and not self._knows_model(batch, checker.model):
            if self._may_find_model(batch):
                self._leave_running(batch, _NO_MODEL)
            faults = (MODEL_NOT_FOUND,)
        changed = await self._book.change(
            batch_id, lambda each: validated(each, checker.model, checker.total, faults, self.now_s)
        )
        if changed.status is BatchStatus.FAILED:
            self._log.info("batch_ended", batch=batch_id, status=str(changed.status), lines=0, failed=len(faults))

    def _check(self, file_id: str, checker: LineChecker) -> tuple[LineFault, ...]:
        """Open a file and check it, in one thread: a batch that is cancelled before the thread begins opens nothing."""
        return check_file(self._book.folder.read(file_id), checker, self._config.line_max_bytes)

    def _caller(self, batch: ClientBatch, served_as: ServiceClass) -> Caller | None:
        """Client of a batch with the rights that its key has now, for a class at most as high as its key's; None if it
        has none any more."""
        key = batch.key
        if self._key_in_force is not None and not batch.is_token:
            key = _key_now(batch, self._key_in_force)
            if key is None:
                return None
        if key is not None and key.service_class is not None and key.service_class.rank > served_as.rank:
            served_as = key.service_class
        return Caller(
            fresh_request_id(),
            batch.tenant,
            ("", ""),
            key=key,
            service_class=served_as,
            keeps_yielding=served_as is not ServiceClass.INTERACTIVE,
            is_patient=served_as is not ServiceClass.INTERACTIVE and self._has_time_to_spare(batch),
        )

    def _knows_model(self, batch: ClientBatch, model: str) -> bool:
        """True if the client of a batch may use a model, as far as this gateway knows, or has no rights any more."""
        assert self._api is not None, "clients are served"
        caller = self._caller(batch, ServiceClass.BATCH)
        return caller is None or model in self._api.models_of(caller)

    def _may_find_model(self, batch: ClientBatch) -> bool:
        """True while a model that is not known here may be known soon: other regions may not have told theirs."""
        return self.now_s < max(batch.created_s, self._opened_s) + _MODEL_S

    def _wait_for_model_s(self, batch: ClientBatch) -> float | None:
        """Seconds after which a line is sent again that was refused since there is no such model; None: it is refused
        for good. Raises BatchLeft where the one model of the batch is gone: it was there when its file was checked."""
        if batch.model:
            if not self._knows_model(batch, batch.model):
                self._leave_running(batch, _NO_MODEL)
            return None
        return _LEFT_S if self._may_find_model(batch) else None

    def _leave_running(self, batch: ClientBatch, reason: str) -> None:
        """Raise BatchLeft for a batch that has neither been cancelled nor expired."""
        if not batch.is_cancelling and batch.expires_s > self.now_s:
            raise BatchLeft(reason)

    def _may_judge_key(self, batch: ClientBatch) -> bool:
        """True unless the key of a batch is not in force here, and may be at another gateway that shares the batch."""
        if not self._book.store.is_shared or self._key_in_force is None or batch.is_token:
            return True
        return _key_now(batch, self._key_in_force) is not None

    # Lines

    async def _run_lines(self, tasks: TaskGroup, batch_id: str, results: BatchResults) -> None:
        """Send all lines that have no result, until none is left or no further one may run."""
        if self._is_over(self._book.batches[batch_id]):
            return
        self._lines[batch_id] = lines = tasks.create_task(_error_of(self._send_lines(batch_id, results)))
        try:
            await asyncio.wait([lines])
        finally:
            del self._lines[batch_id]
        if not lines.cancelled() and (error := lines.result()) is not None:
            raise error

    async def _send_lines(self, batch_id: str, results: BatchResults) -> None:
        batch = self._book.batches[batch_id]
        in_memory, chunks = asyncio.Semaphore(self._config.requests_max), self._chunks[batch_id]
        async with TaskGroup() as running:

            async def begin(line: LineRequest, chunk: LineChunk) -> None:
                await in_memory.acquire()
                chunk.left += 1
                task = running.create_task(send(line, chunk))
                task.add_done_callback(lambda _: in_memory.release())

            async def send(line: LineRequest, chunk: LineChunk) -> None:
                await self._send(batch, line, results)
                chunks.done(chunk)

            await self._each_left(batch, results, chunks, begin)

    async def _each_left(
        self,
        batch: ClientBatch,
        results: BatchResults,
        chunks: LineChunks,
        take: Callable[[LineRequest, LineChunk], Awaitable[None]],
    ) -> None:
        """Hand on each line without a result. Lines are read a few at a time, from where the chunks are. Raises
        InputUnreadable."""
        with _of_input():
            file = await self._book.in_files(self._book.folder.read, batch.input_file_id, chunks.offset)
        with file:
            while lines := await self._next_lines(file):
                chunk = chunks.begin(sum(map(len, lines)))
                for line in lines:
                    if line.strip() and not results.has((request := read_line(line)).custom_id):
                        await take(request, chunk)
                chunks.done(chunk)

    async def _next_lines(self, file: BinaryIO) -> list[bytes]:
        with _of_input():
            return await self._book.in_files(_read_some, file)

    async def _send(self, batch: ClientBatch, line: LineRequest, results: BatchResults) -> None:
        """Send a line until its answer stands. It has a place, except between two tries."""
        for tries in count(1):
            try:
                async with self._places.one_for(batch):
                    result, wait_s = await self._ask(batch, line, tries)
                    if wait_s is None:
                        await results.put(result)
                        return
            except LineTakenBack:
                wait_s = _TAKEN_BACK_S
            await asyncio.sleep(wait_s)

    async def _ask(self, batch: ClientBatch, line: LineRequest, tries: int) -> tuple[LineResult, float | None]:
        """Result of one try, and the time after which another one may succeed."""
        classes = self._classes[batch.id]
        result_id = f"batch_req_{urandom(12).hex()}"
        caller = self._caller(batch, classes.next(is_urgent=self._may_be_urgent(batch.id)))
        if caller is None:
            if self._book.store.is_shared:
                self._leave_running(batch, "its key is not in force here")
            body = error_body(INVALID_API_KEY, shape=shape_of(batch.endpoint, {}))
            return result_of(result_id, line.custom_id, INVALID_API_KEY.status, "", body), None
        assert caller.service_class is not None, "each line has a class"
        self.counts.urgent += caller.service_class is ServiceClass.INTERACTIVE
        classes.begin(caller.service_class)
        try:
            exchange = await self._exchanged(batch, line, caller)
        finally:
            classes.end(caller.service_class)
        if exchange.is_too_large:
            error = ResultError("answer_too_large", f"The answer has more than {self._config.answer_max_bytes} bytes.")
            return LineResult(result_id, line.custom_id, None, error), None
        if exchange.was_cut:
            error = ResultError("engine_failed_midstream", "The request failed after its answer had begun.")
            return LineResult(result_id, line.custom_id, None, error), wait_before_retry_s(502, 0, tries)
        status = exchange.status
        result = result_of(result_id, line.custom_id, status, caller.request_id, exchange.answer())
        if status == CLASS_NOT_ALLOWED.status and is_error(exchange.answer(), CLASS_NOT_ALLOWED.code):
            return result, 0.0 if classes.refuse(caller.service_class) else None
        may_retry = "x-should-retry: false" not in exchange.lines
        wait_s = wait_before_retry_s(status, _told_s(exchange.lines), tries) if may_retry else None
        if wait_s is None and status == 404:
            wait_s = self._wait_for_model_s(batch)
        return result, wait_s

    async def _exchanged(self, batch: ClientBatch, line: LineRequest, caller: Caller) -> LocalExchange:
        """Exchange of one try, once it is over. Raises LineTakenBack."""
        assert self._api is not None, "clients are served"
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        exchange = LocalExchange(
            batch.endpoint,
            line.body,
            answer_bytes_max=self._config.answer_max_bytes,
            on_over=partial(_resolve, over),
        )
        self._sent[caller.request_id] = over
        self._api.serve_for(exchange, batch.endpoint, caller)
        try:
            if not await over:
                raise LineTakenBack
        except (asyncio.CancelledError, LineTakenBack):
            self._api.give_up(exchange)
            raise
        finally:
            del self._sent[caller.request_id]
        return exchange

    def _may_be_urgent(self, batch_id: str) -> bool:
        """True if the next line of a batch may run as interactive, as its window ends. A batch that another gateway has
        just deleted has no such line."""
        most = int(self._config.urgent_share * self._config.requests_max)
        batches = {
            each: Urgency(self._book.batches[each].tenant, classes.urgent, self._urgent_lines(each, most))
            for each, classes in self._classes.items()
            if each in self._book.batches
        }
        return batch_id in batches and may_be_urgent(batch_id, batches, most)

    def _has_time_to_spare(self, batch: ClientBatch) -> bool:
        """True while lines of the batch may wait for cheaper engines."""
        rate = self._book.rates.get(batch.id)
        if rate is None:
            return True
        now = self._book.batches.get(batch.id, batch)
        left, left_s = now.total - now.completed - now.failed, now.expires_s - self.now_s
        return has_time_to_spare(left, rate, left_s, self._clock.now_ns())

    def _urgent_lines(self, batch_id: str, most: int) -> int:
        """Lines of a running batch that should be urgent at once; none before its rate is known."""
        batch, rate, now_ns = self._book.batches[batch_id], self._book.rates[batch_id], self._clock.now_ns()
        if not rate.is_known(now_ns):
            return 0
        left, left_s = batch.total - batch.completed - batch.failed, batch.expires_s - self.now_s
        return urgent_lines(left, rate.per_second(now_ns), left_s, WINDOW_S, most)

    # End

    async def _finish(self, batch_id: str, results: BatchResults) -> None:
        """Give each line without a result an error, and end the batch."""
        is_expired = self._book.batches[batch_id].total != results.lines
        batch = await self._book.change(batch_id, lambda each: lines_over(each, self.now_s, is_expired=is_expired))
        reason = BATCH_CANCELLED if batch.status is BatchStatus.CANCELLING else BATCH_EXPIRED

        async def give_error(line: LineRequest, _: LineChunk) -> None:
            await results.put_unrun(LineResult(f"batch_req_{urandom(12).hex()}", line.custom_id, None, reason))

        await self._each_left(batch, results, LineChunks(self._line_offset(batch_id)), give_error)
        completed, failed = await results.until_written()
        now_s = self.now_s
        last = ended(self._book.batches[batch_id], completed, failed, now_s, unrun=results.unrun)
        await self._keep_ended(last, results, now_s)

    async def _give_up(self, batch_id: str, fault: LineFault) -> None:
        """End a batch that cannot be ended otherwise, with the results that its files hold."""
        results = BatchResults(self._book, self._book.batches[batch_id], self._on_written, self._write_failed)
        await results.reconcile()
        now_s = self.now_s
        last = given_up(self._book.batches[batch_id], fault, now_s, unrun=results.unrun)
        await self._keep_ended(last, results, now_s)

    async def _keep_ended(self, last: ClientBatch, results: BatchResults, now_s: int) -> None:
        """Store a batch that has ended, with its files."""
        outputs, errors = await results.parts()
        named = ((last.output_file_id, "output", outputs), (last.error_file_id, "error", errors))
        files = [self._file(last, file_id, name, parts, now_s) for file_id, name, parts in named if parts]
        await self._book.end(last, files)
        self._log.info("batch_ended", batch=last.id, status=str(last.status), lines=last.total, failed=last.failed)

    def _file(
        self, batch: ClientBatch, file_id: str, name: str, parts: tuple[StoredPart, ...], now_s: int
    ) -> StoredFile:
        return StoredFile(
            id=file_id,
            tenant=batch.tenant,
            filename=f"{batch.id}_{name}.jsonl",
            purpose="batch_output",
            size=sum(each.size for each in parts),
            created_s=now_s,
            expires_s=now_s + self._config.keep_ns // _SECOND_NS,
            parts=parts,
        )

    def _write_failed(self, reason: str) -> None:
        if reason and not self.write_fault:
            self._log.error("batch_results_write_failed", reason=reason)
        self.write_fault = reason


async def _error_of(work: Coroutine[None, None, None]) -> Exception | None:
    """Error of the work, which would end the other tasks of its group if it were raised there."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is raised where the work is waited for
        return error
    return None


def _disk_error(error: Exception) -> OSError | None:
    """Error of the disk, if it is one or a group of nothing else."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, ExceptionGroup):
        found = [_disk_error(each) for each in error.exceptions]
        return None if None in found else found[0]
    return None


def _left(error: Exception) -> BatchLeft | None:
    """Reason to leave a batch, if there is no other error."""
    if isinstance(error, ExceptionGroup):
        found = [_left(each) for each in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, BatchLeft) else None


def _key_now(batch: ClientBatch, key_in_force: KeyInForce) -> ClientKey | None:
    """Key of a batch with the rights that it has now; None if it is in force no more, or is another tenant's."""
    key = None if batch.key is None else key_in_force(batch.key.key_id)
    return None if key is None or not (key.tenant == batch.tenant or key.may_name_tenant) else key


def _refusals(error: Exception) -> list[Exception]:
    """Refusals of the store, since another gateway has taken the batch over or changed it."""
    if isinstance(error, ExceptionGroup):
        return [refusal for each in error.exceptions for refusal in _refusals(each)]
    return [error] if isinstance(error, Refused) else []


@contextmanager
def _of_input() -> Iterator[None]:
    """Raise InputUnreadable for an error of an input file."""
    try:
        yield
    except OSError as error:
        raise InputUnreadable(str(error)) from error


def _read_some(file: BinaryIO) -> list[bytes]:
    return list(islice(file, _READ_LINES))


def _resolve(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)


def _told_s(lines: str) -> float:
    """Seconds after which the gateway says that a retry makes sense; 0 where it does not say."""
    _, _, rest = lines.partition(_RETRY_AFTER)
    told = rest.partition("\r\n")[0]
    return int(told) / 1000 if told.isdecimal() else 0.0
