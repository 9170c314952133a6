"""OpenAI's Files and Batch APIs at the clients' address. A client's text is in no log line and in no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, BinaryIO

import msgspec

from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.routes import Answer
from gateway.door.uploads import check_announced, receive_body
from gateway.features.batches.content import StoredContent
from gateway.features.batches.forms import FormReader, PartBegins, PartEvent
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
from gateway.features.batches.state import ENDPOINTS, WINDOW, ClientBatch, StoredFile
from gateway.features.batches.store import FileInUse

_FORM_BYTES_MAX = 64 * 1024
"""Bytes of a form beside its file."""
_FIELD_BYTES_MAX = 4 * 1024
_ORDER_BYTES_MAX = 64 * 1024
_PIECE_BYTES = 64 * 1024
_PAGE_MAX = 100
_FILES_PAGE_MAX = 10_000
_METADATA_MAX = 16
_NAME_MAX = 255


class _Order(msgspec.Struct):
    """Body that creates a batch. Other fields, such as `output_expires_after`, are ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchApi:
    """Routes of files and batches."""

    def __init__(self, intake: BatchIntake) -> None:
        self._intake = intake
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
            each for each in self._book.files.values() if each.tenant == tenant and purpose in (None, each.purpose)
        ]
        limit = limit_in(asked, _FILES_PAGE_MAX, _FILES_PAGE_MAX)
        give(call, _page(found, asked, limit, is_rising=asked.get("order") == "asc"))

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
        async with intake.receiving(call, intake.config.file_max_bytes, _FORM_BYTES_MAX) as upload:
            form = _Form(upload)
            await self._receive(call, form)
            file = await intake.keep(upload, form.filename(), form.keep_s(intake.keep_s))
        give(call, file.document())

    async def _receive(self, call: ClientCall, form: _Form) -> None:
        """Take in a form as it arrives. Raises ClientFault."""
        exchange = call.exchange
        exchange.go_on()
        try:
            reader = FormReader(exchange.headers.get("content-type", ""))
        except ValueError as error:
            raise ClientFault(errors.INVALID_HEADER, str(error), "content-type") from error

        async def take(piece: bytes) -> None:
            for event in reader.feed(piece):
                await form.take(event)

        bytes_max = self._intake.config.file_max_bytes + _FORM_BYTES_MAX
        try:
            await receive_body(exchange, self._intake.settings, take, bytes_max, whole_s=UPLOAD_S)
        except ValueError as error:
            raise ClientFault(errors.INVALID_FIELD, str(error)) from error
        if not reader.is_over:
            raise ClientFault(errors.INVALID_FIELD, "the form ends before its last delimiter")

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

    async def _order(self, call: ClientCall) -> _Order:
        body = bytearray()

        async def take(piece: bytes) -> None:
            body.extend(piece)

        check_announced(call.exchange, _ORDER_BYTES_MAX)
        call.exchange.go_on()
        await receive_body(call.exchange, self._intake.settings, take, _ORDER_BYTES_MAX)
        try:
            order = msgspec.json.decode(body, type=_Order)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClientFault(errors.INVALID_FIELD, str(error)) from error
        told = order.metadata or {}
        if len(told) > _METADATA_MAX or any(len(name) > 64 or len(text) > 512 for name, text in told.items()):
            raise ClientFault(errors.INVALID_FIELD, "at most 16 pairs of 64 and 512 characters", "metadata")
        return order

    async def _cancel(self, call: ClientCall) -> None:
        give(call, (await self._intake.cancel(await self._batch_of(call))).document())

    async def _batch_of(self, call: ClientCall) -> ClientBatch:
        return await self._intake.batch_of(call, call.path.split("/")[3], is_of_messages=False)


class _Form:
    """Form of an upload: its fields, and its file."""

    def __init__(self, upload: FileUpload) -> None:
        self._upload = upload
        self._fields: dict[str, bytes] = {}
        self._part: PartBegins | None = None
        self._filename: str | None = None
        self._overhead = 0

    async def take(self, event: PartEvent) -> None:
        """Raises ClientFault, and OSError where the disk cannot take it."""
        if isinstance(event, PartBegins):
            self._begin(event)
        elif self._part is not None:
            if self._part.name == "file":
                await self._upload.write(event)
            else:
                self._add(self._part.name, event)

    def _begin(self, part: PartBegins) -> None:
        if part.name in self._fields or (part.name == "file" and self._filename is not None):
            raise ClientFault(errors.INVALID_FIELD, "the form has this field twice", part.name[:_NAME_MAX])
        self._part = part
        if part.name == "file":
            self._filename = (part.filename or "file")[:_NAME_MAX]
        else:
            self._add(part.name, b"")

    def _add(self, name: str, data: bytes) -> None:
        self._overhead += len(name) + len(data)
        self._fields[name] = self._fields.get(name, b"") + data
        if self._overhead > _FORM_BYTES_MAX or len(self._fields[name]) > _FIELD_BYTES_MAX:
            raise ClientFault(errors.INVALID_FIELD, "the form has too many or too long fields")

    def filename(self) -> str:
        """Name of the file. Raises ClientFault where the form lacks something."""
        if self._filename is None:
            raise ClientFault(errors.INVALID_FIELD, "it is missing", "file")
        if self._fields.get("purpose") != b"batch":
            raise ClientFault(errors.INVALID_FIELD, "it is `batch`", "purpose")
        return self._filename

    def keep_s(self, most_s: int) -> int:
        told = self._fields.get("expires_after[seconds]")
        if told is None:
            return most_s
        if not told.isdigit() or len(told) > 10 or not 3600 <= int(told) <= most_s:
            raise ClientFault(errors.INVALID_FIELD, f"it is 3600 to {most_s}", "expires_after[seconds]")
        return int(told)


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
