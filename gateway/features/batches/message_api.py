"""Anthropic's Message Batches at the clients' address, over the same store and runner as OpenAI's batches. A client's
text is in no log line and in no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any, BinaryIO

from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.routes import Answer
from gateway.door.uploads import receive_body
from gateway.features.batches.content import StoredContent
from gateway.features.batches.files import OpenUpload
from gateway.features.batches.intake import (
    UPLOAD_S,
    BatchIntake,
    FileUpload,
    PacedBody,
    asked_of,
    give,
    limit_in,
    stored,
)
from gateway.features.batches.lines import LineChecker
from gateway.features.batches.messages import (
    MESSAGE_BATCHES_PATH,
    batch_document,
    holds_many_more,
    request_lines,
    result_line,
)
from gateway.features.batches.state import ClientBatch, StoredFile, validated
from gateway.features.batches.store import FileInUse
from gateway.request.engine_api import MESSAGES_PATH

_PAGE_MAX = 1_000
_RESULTS = 32
"""Results that are read at once."""
_JSONL = {"content-type": "application/x-jsonl"}


class MessageBatchApi:
    """Routes of message batches."""

    def __init__(self, intake: BatchIntake) -> None:
        self._intake = intake
        self._book = intake.book
        self._reading = asyncio.Lock()
        """Held while a body is in memory."""

    def find(self, path: str) -> Mapping[str, Answer] | None:
        """Answers by method; None for other paths."""
        if not f"{path}/".startswith(f"{MESSAGE_BATCHES_PATH}/"):
            return None
        match path.removeprefix(MESSAGE_BATCHES_PATH).split("/")[1:]:
            case []:
                return {"GET": self._list, "POST": self._create}
            case [batch_id] if batch_id:
                return {"GET": self._show, "DELETE": self._delete}
            case [_, "cancel"]:
                return {"POST": self._cancel}
            case [_, "results"]:
                return {"GET": self._results}
            case _:
                return None

    async def _create(self, call: ClientCall) -> None:
        intake = self._intake
        owner = intake.owner_of(call)
        intake.check_room(owner.tenant)
        bytes_max = intake.config.inline_max_bytes
        async with intake.receiving(call, bytes_max, is_scratch=True) as body:
            call.exchange.go_on()
            await receive_body(call.exchange, intake.settings, body.write, bytes_max, whole_s=UPLOAD_S)
            intake.check_key(owner)
            async with self._reading, intake.holding(owner.tenant, intake.config.file_max_bytes) as lines:
                total = await self._convert(body, lines)
                intake.check_room(owner.tenant)
                batch = intake.new_batch(owner, MESSAGES_PATH, lines.id)
                file = intake.new_file(lines, f"{batch.id}.jsonl", intake.keep_s)
                await intake.keep(lines, file)
        checked = validated(batch, "", total, (), intake.now_s)
        try:
            await intake.hand_in(checked)
        except ClientFault:
            with suppress(FileInUse):  # the batch was stored, and the answer was lost
                await stored(self._book.delete_file(file.id))
            raise
        give(call, self._document(checked))

    async def _convert(self, body: FileUpload, lines: FileUpload) -> int:
        """Write the requests of a body as lines. Returns their number; raises ClientFault for one with a fault."""
        config = self._intake.config
        checker = LineChecker(MESSAGES_PATH, config.lines_max, config.line_max_bytes, may_mix_models=True)
        assert lines.opened is not None, "it is written"
        try:
            lines.size = await self._book.in_files(_write_lines, body.opened, lines.opened, checker)
        except ValueError as error:
            raise ClientFault(errors.INVALID_FIELD, str(error), "requests") from error
        for fault in checker.end():
            at = "requests" if fault.line is None else f"requests.{fault.line - 1}"
            raise ClientFault(errors.INVALID_FIELD, f"{at}: {fault.message}", at)
        return checker.total

    async def _list(self, call: ClientCall) -> None:
        found, asked = self._intake.batches_of(call, is_of_messages=True), asked_of(call)
        limit = limit_in(asked, 20, _PAGE_MAX)
        mark = next((name for name in ("before_id", "after_id") if name in asked), None)
        is_back = mark == "before_id"
        ordered = sorted(found, key=lambda each: (each.created_s, each.id), reverse=not is_back)
        begin = 0
        if mark is not None:
            begin = next((place + 1 for place, each in enumerate(ordered) if each.id == asked[mark]), -1)
            if begin < 0:
                raise ClientFault(errors.INVALID_FIELD, "it is none of the list's", mark)
        shown = ordered[begin : begin + limit]
        has_more = begin + len(shown) < len(ordered)
        if is_back:
            shown.reverse()
        ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None}
        give(call, {"data": [self._document(each) for each in shown], "has_more": has_more, **ends})

    async def _show(self, call: ClientCall) -> None:
        give(call, self._document(await self._batch_of(call)))

    async def _cancel(self, call: ClientCall) -> None:
        give(call, self._document(await self._intake.cancel(await self._batch_of(call))))

    async def _delete(self, call: ClientCall) -> None:
        """Delete a batch that has ended, with its files."""
        batch = await self._ended_of(call)
        await stored(self._book.delete_batch(batch.id))
        for file_id in (batch.input_file_id, *batch.result_ids):
            with suppress(FileInUse):
                await stored(self._book.delete_file(file_id))
        give(call, {"id": batch.id, "type": "message_batch_deleted"})

    async def _results(self, call: ClientCall) -> None:
        files = self._files_of(await self._ended_of(call))
        if not files:
            raise ClientFault(errors.FILE_NOT_FOUND)
        body = PacedBody(call)
        content = await StoredContent.open(self._book, files)
        call.begin_body(_JSONL, None)
        try:
            async with aclosing(content.pieces(_some_results)) as pieces:
                async for piece in pieces:
                    await body.write(piece)
        except OSError:
            call.fail()
            return
        call.exchange.finish()
        call.release()

    def _files_of(self, batch: ClientBatch) -> list[StoredFile] | None:
        """Files with the results of a batch; None if one was deleted, by its client or by age."""
        counts = (batch.completed, batch.failed)
        wanted = [file_id for file_id, lines in zip(batch.result_ids, counts, strict=True) if lines]
        found = [self._book.files[each] for each in wanted if each in self._book.files]
        return found if len(found) == len(wanted) else None

    def _document(self, batch: ClientBatch) -> dict[str, object]:
        return batch_document(batch, has_results=batch.has_ended and self._files_of(batch) is not None)

    async def _ended_of(self, call: ClientCall) -> ClientBatch:
        batch = await self._batch_of(call)
        if not batch.has_ended:
            raise ClientFault(errors.BATCH_NOT_ENDED)
        return batch

    async def _batch_of(self, call: ClientCall) -> ClientBatch:
        batch_id = call.path.removeprefix(MESSAGE_BATCHES_PATH).split("/")[1]
        return await self._intake.batch_of(call, batch_id, is_of_messages=True)


def _write_lines(body: Any, lines: OpenUpload, checker: LineChecker) -> int:
    """Write the requests of a body as lines, up to the first with a fault; blocks. Returns the bytes written; raises
    ValueError."""
    size = 0
    body.seek(0)
    read = body.read()
    if holds_many_more(read, checker.lines_max):
        raise ValueError(f"there are more than {checker.lines_max:,}")
    for line in request_lines(read, checker.line_bytes_max):
        if not checker.take(line) or checker.faults:
            break
        lines.write(line)
        size += len(line)
    return size


def _some_results(file: BinaryIO) -> bytes:
    return b"".join(map(result_line, islice(file, _RESULTS)))
