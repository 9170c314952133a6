"""OpenAI's Files and Batch APIs at the clients' address. A client's text is in no log line and in no error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw

from gateway.core.vocabulary import ModelName
from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.routes import Answer
from gateway.features.batches.content import StoredContent
from gateway.features.batches.file_forms import FORM_BYTES_MAX, FileForm
from gateway.features.batches.intake import (
    BatchIntake,
    PacedBody,
    asked_of,
    caller_of,
    give,
    limit_in,
    new_file_id,
    order_in,
    stored,
)
from gateway.features.batches.lookout import Lookout
from gateway.features.batches.state import ENDPOINTS, WINDOW, ClientBatch, LineFault, StoredFile
from gateway.features.batches.store import FileInUse

_PIECE_BYTES = 64 * 1024
_PAGE_MAX = 100
_FILES_PAGE_MAX = 10_000
_METADATA_MAX = 16


class _Order(msgspec.Struct):
    """Body that creates a batch. Other fields, such as `output_expires_after`, are ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchApi:
    """Routes of files and batches."""

    def __init__(self, intake: BatchIntake, lookout: Lookout) -> None:
        self._intake = intake
        self._lookout = lookout
        self._book = intake.book

    def find(self, path: str) -> Mapping[str, Answer] | None:
        """Answers by method; None for other paths."""
        match path.removeprefix("/v1/").split("/") if path.startswith("/v1/") else []:
            case ["files"]:
                return {"GET": self._list_files, "POST": self._upload}
            case ["files", file_id] if file_id:
                return {"GET": self._show_file, "DELETE": self._delete_file}
            case ["files", _, "content"]:
                return {"GET": self._content}
            case ["batches"]:
                return {"GET": self._list_batches, "POST": self._create}
            case ["batches", "outlook"]:
                return {"GET": self._show_outlook}
            case ["batches", batch_id] if batch_id:
                return {"GET": self._show_batch}
            case ["batches", _, "cancel"]:
                return {"POST": self._cancel}
            case _:
                return None

    # Files

    async def _list_files(self, call: ClientCall) -> None:
        tenant, asked = self._intake.tenant_of(call), asked_of(call)
        purpose = asked.get("purpose")
        found = [
            each
            for each in self._book.files.values()
            if each.tenant == tenant and not each.upload and purpose in (None, each.purpose)
        ]
        limit = limit_in(asked, _FILES_PAGE_MAX, _FILES_PAGE_MAX)
        page = partial(_page, found, asked, limit, is_rising=asked.get("order") == "asc")
        give(call, await asyncio.to_thread(lambda: Raw(msgspec.json.encode(page()))))

    async def _show_file(self, call: ClientCall) -> None:
        give(call, (await self._file_of(call)).document())

    async def _delete_file(self, call: ClientCall) -> None:
        file = await self._file_of(call)
        try:
            await stored(self._book.delete_file(file.id))
        except FileInUse as error:
            raise ClientFault(errors.FILE_IN_USE) from error
        give(call, {"id": file.id, "object": "file", "deleted": True})

    async def _content(self, call: ClientCall) -> None:
        file = await self._file_of(call)
        body = PacedBody(call)
        content = await StoredContent.open(self._book, [file])
        call.begin_body({"content-type": "application/octet-stream"}, file.size)
        left = file.size
        try:
            async with aclosing(content.pieces(_some_bytes)) as pieces:
                async for piece in pieces:
                    await body.write(piece[:left])
                    left -= min(left, len(piece))
        except OSError:
            left = file.size
        if left:
            call.fail()  # the file is shorter than its row says
            return
        call.exchange.finish()
        call.release()

    async def _file_of(self, call: ClientCall) -> StoredFile:
        tenant = self._intake.tenant_of(call)
        file: StoredFile | None = await stored(self._book.find_file(call.path.split("/")[3]))
        if file is None or file.tenant != tenant:
            raise ClientFault(errors.FILE_NOT_FOUND)
        return file

    # Uploads

    async def _upload(self, call: ClientCall) -> None:
        intake = self._intake
        async with intake.receiving(call, intake.config.file_max_bytes, FORM_BYTES_MAX) as upload:
            form = FileForm(upload, "file")
            await form.receive(call, intake.settings, intake.config.file_max_bytes)
            form.check_purpose()
            file = intake.new_file(upload, form.filename, form.keep_s(intake.keep_s))
            await intake.keep(upload, file)
        give(call, file.document())

    # Batches

    async def _list_batches(self, call: ClientCall) -> None:
        found, asked = self._intake.batches_of(call, is_of_messages=False), asked_of(call)
        give(call, _page(found, asked, limit_in(asked, 20, _PAGE_MAX), is_rising=False))

    async def _show_batch(self, call: ClientCall) -> None:
        give(call, (await self._batch_of(call)).document())

    async def _create(self, call: ClientCall) -> None:
        intake = self._intake
        owner = intake.owner_of(call)
        order = await self._order(call)
        intake.check_key(owner)
        file = await stored(self._book.find_file(order.input_file_id))
        if file is None or file.tenant != owner.tenant or file.purpose != "batch":
            raise ClientFault(errors.FILE_NOT_FOUND, param="input_file_id")
        if order.endpoint not in ENDPOINTS:
            raise ClientFault(errors.INVALID_FIELD, f"it is one of {', '.join(ENDPOINTS)}", "endpoint")
        if order.completion_window != WINDOW:
            raise ClientFault(errors.INVALID_FIELD, f"it is {WINDOW}", "completion_window")
        intake.check_room(owner.tenant)
        batch = intake.new_batch(owner, order.endpoint, file.id, order.metadata)
        await intake.hand_in(batch)
        give(call, batch.document())

    async def _show_outlook(self, call: ClientCall) -> None:
        """Tell what a batch of one model that is handed in now would meet; nothing is kept."""
        intake = self._intake
        owner, model = intake.owner_of(call), asked_of(call).get("model", "")
        fresh = intake.new_batch(owner, ENDPOINTS[0], new_file_id())
        outlook = self._lookout.outlook(caller_of(call), ModelName(model), fresh)
        try:
            intake.check_room(owner.tenant)
        except ClientFault as fault:
            outlook.faults.append(LineFault(fault.kind.code, fault.kind.message))
        give(call, outlook)

    async def _order(self, call: ClientCall) -> _Order:
        order = await order_in(call, self._intake.settings, _Order)
        told = order.metadata or {}
        if len(told) > _METADATA_MAX or any(len(name) > 64 or len(text) > 512 for name, text in told.items()):
            raise ClientFault(errors.INVALID_FIELD, "at most 16 pairs of 64 and 512 characters", "metadata")
        return order

    async def _cancel(self, call: ClientCall) -> None:
        give(call, (await self._intake.cancel(await self._batch_of(call))).document())

    async def _batch_of(self, call: ClientCall) -> ClientBatch:
        return await self._intake.batch_of(call, call.path.split("/")[3], is_of_messages=False)


def _some_bytes(file: BinaryIO) -> bytes:
    return file.read(_PIECE_BYTES)


def _page(
    found: Sequence[StoredFile | ClientBatch], asked: Mapping[str, str], limit: int, *, is_rising: bool
) -> dict[str, Any]:
    """One page of a list, the newest first unless it is rising."""
    ordered = sorted(found, key=lambda each: (each.created_s, each.id), reverse=not is_rising)
    after = asked.get("after")
    begin = 0
    if after is not None:
        begin = next((place + 1 for place, each in enumerate(ordered) if each.id == after), -1)
        if begin < 0:
            raise ClientFault(errors.INVALID_FIELD, "it is none of the list's", "after")
    shown = ordered[begin : begin + limit]
    return {
        "object": "list",
        "data": [each.document() for each in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": begin + len(shown) < len(ordered),
    }
