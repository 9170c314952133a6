"""OpenAI's Files and Batch APIs at the clients' address. A tenant sees its own files and batches only; a client's text
is in no log line and in no error.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import urandom
from typing import Any, BinaryIO
from urllib.parse import parse_qs

import msgspec
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import TenantName
from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.parse import Caller
from gateway.door.routes import Answer
from gateway.door.settings import HttpSettings
from gateway.door.uploads import check_announced, receive_body
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.multipart import MultipartParser, PartBegins, PartEnds
from gateway.features.batches.state import ENDPOINTS, WINDOW, WINDOW_S, BatchStatus, ClientBatch, StoredFile, cancelling
from gateway.features.extension import KeyInForce
from gateway.request.callers import ClientKey
from mesh.clock import Clock
from mesh.threads import finish_in_thread
from mesh.waiter import Waiter

_SECOND_NS = 1_000_000_000
_JSON = {"content-type": "application/json; charset=utf-8"}
_FORM_BYTES_MAX = 64 * 1024
"""Bytes of a form beside its file."""
_FIELD_BYTES_MAX = 4 * 1024
_ORDER_BYTES_MAX = 64 * 1024
_UPLOAD_S = 4 * 3600.0
"""Longest time of an upload that is fast enough throughout."""
_PIECE_BYTES = 64 * 1024
_PAGE_MAX = 100
_FILES_PAGE_MAX = 10_000
_METADATA_MAX = 16
_NAME_MAX = 255
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Order(msgspec.Struct):
    """Body that creates a batch. Other fields, such as `output_expires_after`, are ignored."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchApi:
    """Routes of files and batches."""

    def __init__(
        self,
        config: BatchesConfig,
        settings: HttpSettings,
        book: BatchBook,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        key_in_force: KeyInForce | None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._book = book
        self._clock = clock
        self._log = log
        self._key_in_force = key_in_force
        self._uploads: dict[TenantName, int] = {}
        """Uploads that are being received, by tenant."""
        self._creating: dict[TenantName, int] = {}
        """Batches that are being stored for the first time, by tenant."""

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

    @property
    def _now_s(self) -> int:
        return self._clock.wall_ns() // _SECOND_NS

    # Files

    async def _list_files(self, call: ClientCall) -> None:
        tenant, asked = self._tenant_of(call), _asked(call)
        purpose = asked.get("purpose")
        found = [
            each for each in self._book.files.values() if each.tenant == tenant and purpose in (None, each.purpose)
        ]
        _give(call, _page(found, asked, _FILES_PAGE_MAX, is_rising=asked.get("order") == "asc"))

    async def _show_file(self, call: ClientCall) -> None:
        _give(call, self._file_of(call).document())

    async def _delete_file(self, call: ClientCall) -> None:
        file = self._file_of(call)
        if self._book.is_used(file.id):
            raise ClientFault(errors.FILE_IN_USE)
        await _stored(self._book.delete_file(file.id))
        _give(call, {"id": file.id, "object": "file", "deleted": True})

    async def _content(self, call: ClientCall) -> None:
        file = self._file_of(call)
        writable = Waiter()
        call.exchange.on_writable = writable.wake
        try:
            opened = await asyncio.to_thread(self._book.store.path(file.id).open, "rb")
        except OSError as error:
            raise ClientFault(errors.FILE_NOT_FOUND) from error
        with opened:
            call.begin_body({"content-type": "application/octet-stream"}, file.size)
            left = file.size
            while left:
                piece = await finish_in_thread(opened.read, min(_PIECE_BYTES, left))
                if not piece:
                    call.fail()  # the file is shorter than its row says
                    return
                left -= len(piece)
                if not call.exchange.write(piece) and left:
                    await writable.wait()
        call.exchange.finish()
        call.release()

    def _file_of(self, call: ClientCall) -> StoredFile:
        file = self._book.files.get(call.path.split("/")[3]) if self._is_open() else None
        if file is None or file.tenant != self._tenant_of(call):
            raise ClientFault(errors.FILE_NOT_FOUND)
        return file

    # Uploads

    async def _upload(self, call: ClientCall) -> None:
        tenant, config = self._tenant_of(call), self._config
        if call.exchange.headers.get("content-encoding", "identity").lower() != "identity":
            raise ClientFault(errors.UNSUPPORTED_ENCODING, "a file is sent as it is")
        check_announced(call.exchange, config.file_max_bytes + _FORM_BYTES_MAX)
        own = self._uploads.get(tenant, 0)
        if sum(self._uploads.values()) >= config.uploads_max or own >= config.tenant_uploads_max:
            raise ClientFault(errors.UPLOADS_EXCEEDED)
        if self._book.sizes.files_of(tenant) >= config.tenant_files_max:
            raise ClientFault(errors.FILES_FULL, f"{config.tenant_files_max} files of this tenant are kept")
        file_id = f"file-{urandom(12).hex()}"
        form = _Form(file_id, tenant, self._book, config)
        with _counted(self._uploads, tenant):
            _give(call, (await self._take_file(call, file_id, form)).document())

    async def _take_file(self, call: ClientCall, file_id: str, form: _Form) -> StoredFile:
        """Receive and keep a file. One that cannot be kept leaves nothing."""
        try:
            form.open(await self._book.do(self._book.store.begin_upload, file_id))
            await self._receive(call, form)
            file = form.stored(self._now_s)
            await self._book.keep_file(form.opened, file)
        except OSError as error:
            raise _full(error) from error
        finally:
            if file_id not in self._book.files:
                self._book.sizes.drop(file_id)
                opened = form.opened if form.is_open else None
                await finish_in_thread(self._book.store.drop_upload, opened, file_id)
        return file

    async def _receive(self, call: ClientCall, form: _Form) -> None:
        """Take in a form as it arrives. Raises ClientFault."""
        exchange = call.exchange
        exchange.go_on()
        try:
            parser = MultipartParser(exchange.headers.get("content-type", ""))
        except ValueError as error:
            raise ClientFault(errors.INVALID_HEADER, str(error), "content-type") from error

        async def take(piece: bytes) -> None:
            for event in parser.feed(piece):
                await form.take(event)

        bytes_max = self._config.file_max_bytes + _FORM_BYTES_MAX
        try:
            await receive_body(exchange, self._settings, take, bytes_max, whole_s=_UPLOAD_S)
        except ValueError as error:
            raise ClientFault(errors.INVALID_FIELD, str(error)) from error
        if not parser.is_over:
            raise ClientFault(errors.INVALID_FIELD, "the form ends before its last delimiter")

    # Batches

    async def _list_batches(self, call: ClientCall) -> None:
        tenant = self._tenant_of(call)
        found = [each for each in self._book.batches.values() if each.tenant == tenant]
        _give(call, _page(found, _asked(call), _PAGE_MAX, is_rising=False))

    async def _show_batch(self, call: ClientCall) -> None:
        _give(call, self._batch_of(call).document())

    async def _create(self, call: ClientCall) -> None:
        tenant, caller = self._tenant_of(call), _caller_of(call)
        key = caller.key
        is_token = key is not None and not self._is_in_force(key)
        order = await self._order(call)
        if key is not None and not is_token and not self._is_in_force(key):
            raise ClientFault(errors.INVALID_API_KEY)  # removed while its client sent the body
        file = self._book.files.get(order.input_file_id)
        if file is None or file.tenant != tenant or file.purpose != "batch":
            raise ClientFault(errors.FILE_NOT_FOUND, param="input_file_id")
        if order.endpoint not in ENDPOINTS:
            raise ClientFault(errors.INVALID_FIELD, f"it is one of {', '.join(ENDPOINTS)}", "endpoint")
        if order.completion_window != WINDOW:
            raise ClientFault(errors.INVALID_FIELD, f"it is {WINDOW}", "completion_window")
        self._check_room(tenant)
        batch = ClientBatch(
            id=f"batch_{urandom(12).hex()}",
            tenant=tenant,
            key=key,
            is_token=is_token,
            endpoint=order.endpoint,
            input_file_id=file.id,
            output_file_id=f"file-{urandom(12).hex()}",
            error_file_id=f"file-{urandom(12).hex()}",
            created_s=self._now_s,
            expires_s=self._now_s + WINDOW_S,
            metadata=order.metadata,
        )
        with _counted(self._creating, tenant):
            await _stored(self._drop_oldest(tenant))
            await _stored(self._book.put(batch))
        self._log.info("batch_created", batch=batch.id, tenant=tenant, file=file.id)
        _give(call, batch.document())

    def _is_in_force(self, key: ClientKey) -> bool:
        """True if the keys file has the key at this moment; it has none that stands for a token."""
        return self._key_in_force is not None and self._key_in_force(key.key_id) is not None

    def _check_room(self, tenant: TenantName) -> None:
        """Raise ClientFault where a further batch, or its result files, would be beyond a limit."""
        config, book = self._config, self._book
        unfinished = sum(not each.has_ended and each.tenant == tenant for each in book.batches.values())
        if unfinished + self._creating.get(tenant, 0) >= config.tenant_unfinished_max:
            raise ClientFault(errors.BATCHES_EXCEEDED)
        if book.sizes.files_of(tenant) >= config.tenant_files_max:
            raise ClientFault(errors.FILES_FULL, f"{config.tenant_files_max} files of this tenant are kept")
        if book.sizes.bytes_of(tenant) > config.tenant_max_bytes:
            raise ClientFault(errors.FILES_FULL, "of this tenant")
        if book.sizes.total > config.folder_max_bytes:
            raise ClientFault(errors.FILES_FULL)

    async def _drop_oldest(self, tenant: TenantName) -> None:
        """Delete the oldest batches that have ended where there are as many as a tenant may have."""
        ended = [each for each in self._book.batches.values() if each.tenant == tenant and each.has_ended]
        ended.sort(key=lambda each: (each.created_s, each.id))
        for batch in ended[: max(0, len(ended) + 1 - self._config.tenant_ended_max)]:
            await self._book.delete_batch(batch.id)

    async def _order(self, call: ClientCall) -> _Order:
        body = bytearray()

        async def take(piece: bytes) -> None:
            body.extend(piece)

        check_announced(call.exchange, _ORDER_BYTES_MAX)
        call.exchange.go_on()
        await receive_body(call.exchange, self._settings, take, _ORDER_BYTES_MAX)
        try:
            order = msgspec.json.decode(body, type=_Order)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClientFault(errors.INVALID_FIELD, str(error)) from error
        told = order.metadata or {}
        if len(told) > _METADATA_MAX or any(len(name) > 64 or len(text) > 512 for name, text in told.items()):
            raise ClientFault(errors.INVALID_FIELD, "at most 16 pairs of 64 and 512 characters", "metadata")
        return order

    async def _cancel(self, call: ClientCall) -> None:
        batch = self._batch_of(call)
        if batch.has_ended or batch.status is BatchStatus.FINALIZING:
            raise ClientFault(errors.BATCH_NOT_CANCELLABLE, f"it is {batch.status}")
        changed = await _stored(self._book.change_once_stored(batch.id, lambda each: cancelling(each, self._now_s)))
        _give(call, changed.document())

    def _batch_of(self, call: ClientCall) -> ClientBatch:
        batch = self._book.batches.get(call.path.split("/")[3]) if self._is_open() else None
        if batch is None or batch.tenant != self._tenant_of(call):
            raise ClientFault(errors.BATCH_NOT_FOUND)
        return batch

    def _tenant_of(self, call: ClientCall) -> TenantName:
        self._is_open()
        return _caller_of(call).tenant

    def _is_open(self) -> bool:
        """Raise ClientFault while the store is another process's, or cannot be opened."""
        if not self._book.is_open:
            raise ClientFault(errors.BATCHES_UNAVAILABLE)
        return True


class _Form:
    """Form of an upload: its fields, and its file on the way to the folder."""

    def __init__(self, file_id: str, tenant: TenantName, book: BatchBook, config: BatchesConfig) -> None:
        self.is_open = False
        self.opened: BinaryIO
        self._file_id = file_id
        self._tenant = tenant
        self._book = book
        self._config = config
        self._fields: dict[str, bytes] = {}
        self._part: PartBegins | None = None
        self._filename: str | None = None
        self._size = 0
        self._overhead = 0

    def open(self, opened: BinaryIO) -> None:
        self.opened, self.is_open = opened, True

    async def take(self, event: PartBegins | PartEnds | bytes) -> None:
        """Raises ClientFault, and OSError where the disk cannot take it."""
        if isinstance(event, PartBegins):
            self._begin(event)
        elif isinstance(event, bytes) and self._part is not None:
            if self._part.name == "file":
                await self._write(event)
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

    async def _write(self, data: bytes) -> None:
        config, book = self._config, self._book
        self._size += len(data)
        if self._size > config.file_max_bytes:
            raise ClientFault(errors.BODY_TOO_LARGE)
        book.sizes.put(self._file_id, self._tenant, self._size)
        if book.sizes.bytes_of(self._tenant) > config.tenant_max_bytes:
            raise ClientFault(errors.FILES_FULL, "of this tenant")
        if book.sizes.total > config.folder_max_bytes:
            raise ClientFault(errors.FILES_FULL)
        await finish_in_thread(self.opened.write, data)

    def stored(self, now_s: int) -> StoredFile:
        """Row of the file. Raises ClientFault where the form lacks something."""
        if self._filename is None:
            raise ClientFault(errors.INVALID_FIELD, "it is missing", "file")
        purpose = self._fields.get("purpose", b"").decode("utf-8", "replace")
        if purpose != "batch":
            raise ClientFault(errors.INVALID_FIELD, "it is `batch`", "purpose")
        return StoredFile(
            id=self._file_id,
            tenant=self._tenant,
            filename=self._filename,
            purpose=purpose,
            size=self._size,
            created_s=now_s,
            expires_s=now_s + self._keep_s(),
        )

    def _keep_s(self) -> int:
        most_s = self._config.keep_ns // _SECOND_NS
        told = self._fields.get("expires_after[seconds]")
        if told is None:
            return most_s
        if not told.isdigit() or len(told) > 10 or not 3600 <= int(told) <= most_s:
            raise ClientFault(errors.INVALID_FIELD, f"it is 3600 to {most_s}", "expires_after[seconds]")
        return int(told)


@contextmanager
def _counted(counts: dict[TenantName, int], tenant: TenantName) -> Iterator[None]:
    """Count one more of a tenant meanwhile."""
    counts[tenant] = counts.get(tenant, 0) + 1
    try:
        yield
    finally:
        counts[tenant] -= 1
        if not counts[tenant]:
            del counts[tenant]


def _caller_of(call: ClientCall) -> Caller:
    assert call.caller is not None, "it was let in"
    return call.caller


def _give(call: ClientCall, document: object) -> None:
    call.respond(200, msgspec.json.encode(document), _JSON)


def _asked(call: ClientCall) -> dict[str, str]:
    """Parameters of the query."""
    query = call.exchange.target.decode("latin-1").partition("?")[2]
    return {name: texts[0] for name, texts in parse_qs(query, max_num_fields=32).items()}


def _page(
    found: Sequence[StoredFile | ClientBatch], asked: Mapping[str, str], limit_max: int, *, is_rising: bool
) -> dict[str, Any]:
    """One page of a list, the newest first unless it is rising."""
    ordered = sorted(found, key=lambda each: (each.created_s, each.id), reverse=not is_rising)
    told = asked.get("limit", "20" if limit_max == _PAGE_MAX else str(limit_max))
    if not told.isdecimal() or not 1 <= int(told[:6]) <= limit_max:
        raise ClientFault(errors.INVALID_FIELD, f"it is 1 to {limit_max}", "limit")
    after = asked.get("after")
    begin = 0
    if after is not None:
        begin = next((place + 1 for place, each in enumerate(ordered) if each.id == after), -1)
        if begin < 0:
            raise ClientFault(errors.INVALID_FIELD, "it is none of the list's", "after")
    shown = ordered[begin : begin + int(told)]
    return {
        "object": "list",
        "data": [each.document() for each in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": begin + len(shown) < len(ordered),
    }


async def _stored(work: Any) -> Any:
    """Result of work on the store. Raises ClientFault where the disk fails."""
    try:
        return await work
    except OSError as error:
        raise _full(error) from error


def _full(error: OSError) -> ClientFault:
    is_full = error.errno in _FULL or "full" in str(error)
    return ClientFault(errors.FILES_FULL if is_full else errors.BATCHES_UNAVAILABLE)
