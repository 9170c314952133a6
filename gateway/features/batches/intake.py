"""Work that the APIs of batches share: who asks, room for files and batches, and their first storing."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from os import urandom
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import TenantName
from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.parse import Caller
from gateway.door.settings import HttpSettings
from gateway.door.uploads import check_announced, receive_body
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.database import RowOutdated
from gateway.features.batches.state import (
    WINDOW_S,
    BatchStatus,
    ClientBatch,
    StoredFile,
    UploadInParts,
    UploadStatus,
    cancelling,
)
from gateway.features.batches.store import FileMissing
from gateway.features.extension import KeyInForce
from gateway.request.callers import ClientKey
from gateway.request.engine_api import MESSAGES_PATH
from mesh.clock import Clock
from mesh.waiter import Waiter

_PARAMETERS_MAX = 32
_DIGITS_MAX = 6
UPLOAD_S = 4 * 3600.0
"""Longest time of an upload that is fast enough throughout."""
ORDER_BYTES_MAX = 64 * 1024
"""Bytes of a body of JSON."""
_SECOND_NS = 1_000_000_000
_KEEP_MIN_S = 3600
_JSON = {"content-type": "application/json; charset=utf-8"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_Order = TypeVar("_Order")


class BatchOwner(Struct, frozen=True):
    """Client that hands a batch in, with its key; a token stands for a key that no file has."""

    tenant: TenantName
    key: ClientKey | None
    is_token: bool


class FileUpload:
    """File on its way to where files are kept."""

    def __init__(self, book: BatchBook, config: BatchesConfig, tenant: TenantName, bytes_max: int) -> None:
        self.id = new_file_id()
        self.size = 0
        self.tenant = tenant
        self.opened: Any = None
        """OpenUpload that takes the bytes, or a file without a name."""
        self._book = book
        self._config = config
        self._bytes_max = bytes_max

    async def write(self, data: bytes) -> None:
        """Raises ClientFault beyond a limit, and OSError where the disk cannot take it."""
        assert self.opened is not None, "it was opened"
        config, sizes = self._config, self._book.sizes
        self.size += len(data)
        if self.size > self._bytes_max:
            raise ClientFault(errors.BODY_TOO_LARGE)
        sizes.put(self.id, self.tenant, self.size)
        if sizes.bytes_of(self.tenant) > config.tenant_max_bytes:
            raise ClientFault(errors.FILES_FULL, "of this tenant")
        if sizes.total > config.folder_max_bytes:
            raise ClientFault(errors.FILES_FULL)
        await self._book.in_files(self.opened.write, data)


class BatchIntake:
    """Entrance of files and batches, for all APIs. A tenant sees its own only."""

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
        self.config = config
        self.settings = settings
        self.book = book
        self._clock = clock
        self._log = log
        self._key_in_force = key_in_force
        self._uploads: dict[TenantName, int] = {}
        """Uploads that are being received, by tenant."""
        self._creating: dict[TenantName, int] = {}
        """Batches that are being stored for the first time, by tenant."""
        self._beginning: dict[TenantName, int] = {}
        """Uploads in parts that are being stored for the first time, by tenant."""

    @property
    def now_s(self) -> int:
        return self._clock.wall_ns() // _SECOND_NS

    @property
    def keep_s(self) -> int:
        return self.config.keep_ns // _SECOND_NS

    # Clients

    def tenant_of(self, call: ClientCall) -> TenantName:
        """Raise ClientFault while the store is another process's, or cannot be opened."""
        if not self.book.is_open:
            raise ClientFault(errors.BATCHES_UNAVAILABLE)
        return caller_of(call).tenant

    def owner_of(self, call: ClientCall) -> BatchOwner:
        key = caller_of(call).key
        return BatchOwner(self.tenant_of(call), key, key is not None and key.is_token)

    def check_key(self, owner: BatchOwner) -> None:
        """Raise ClientFault if the key was removed while its client sent the body."""
        if owner.key is not None and not owner.is_token and not self._is_in_force(owner.key):
            raise ClientFault(errors.INVALID_API_KEY)

    def _is_in_force(self, key: ClientKey) -> bool:
        """True if the keys file has the key at this moment."""
        return self._key_in_force is not None and self._key_in_force(key.key_id) is not None

    # Files

    @asynccontextmanager
    async def receiving(
        self, call: ClientCall, bytes_max: int, further_bytes_max: int = 0, *, is_scratch: bool = False
    ) -> AsyncIterator[FileUpload]:
        """Upload from a client, of which nothing is left unless it is kept. `further_bytes_max` bounds what its body
        holds beside it."""
        tenant, config = self.tenant_of(call), self.config
        if call.exchange.headers.get("content-encoding", "identity").lower() != "identity":
            raise ClientFault(errors.UNSUPPORTED_ENCODING, "a file is sent as it is")
        check_announced(call.exchange, bytes_max + further_bytes_max)
        own = self._uploads.get(tenant, 0)
        if sum(self._uploads.values()) >= config.uploads_max or own >= config.tenant_uploads_max:
            raise ClientFault(errors.UPLOADS_EXCEEDED)
        if self.book.sizes.files_of(tenant) >= config.tenant_files_max:
            raise ClientFault(errors.FILES_FULL, f"{config.tenant_files_max} files of this tenant are kept")
        with _counted(self._uploads, tenant):
            async with self.holding(tenant, bytes_max, is_scratch=is_scratch) as upload:
                yield upload

    @asynccontextmanager
    async def holding(
        self, tenant: TenantName, bytes_max: int, *, is_scratch: bool = False
    ) -> AsyncIterator[FileUpload]:
        """File that is written here, of which nothing is left unless it is kept. `is_scratch`: it is never kept, but
        can be read."""
        book, folder = self.book, self.book.folder
        upload = FileUpload(book, self.config, tenant, bytes_max)
        try:
            upload.opened = await (
                book.in_files(folder.scratch) if is_scratch else book.in_files(folder.begin, upload.id)
            )
            yield upload
        except OSError as error:
            raise _full(error) from error
        finally:
            if not book.has_content(upload.id):
                book.sizes.drop(upload.id)
                if not is_scratch:
                    with suppress(OSError):  # remains are swept later, and the first error is told
                        await book.in_files(folder.drop, upload.opened, upload.id)
                elif upload.opened is not None:
                    await book.in_files(upload.opened.close)

    def new_file(self, upload: FileUpload, filename: str, keep_s: int) -> StoredFile:
        """File that an upload becomes, with all that was written to it."""
        now_s = self.now_s
        return StoredFile(
            id=upload.id,
            tenant=upload.tenant,
            filename=filename,
            purpose="batch",
            size=upload.size,
            created_s=now_s,
            expires_s=now_s + keep_s,
        )

    async def keep(self, upload: FileUpload, file: StoredFile, completed: UploadInParts | None = None) -> None:
        """Keep an upload as a file, which completes an upload in parts, if any. Raises OSError, and RowOutdated where
        that one is not pending any more."""
        assert upload.opened is not None, "it was opened"
        await self.book.keep_file(upload.opened, file, completed)

    async def begin_upload(self, upload: UploadInParts) -> None:
        """Store a new upload in parts. Raises ClientFault beyond a limit."""
        tenant, now_s = upload.tenant, self.now_s
        ends_s = [
            each.expires_s
            for each in self.book.uploads.values()
            if each.tenant == tenant and each.status_at(now_s) is UploadStatus.PENDING
        ]
        pending = len(ends_s) + self._beginning.get(tenant, 0)
        if pending >= self.config.tenant_pending_uploads_max:
            kind = errors.UPLOADS_EXCEEDED
            if ends_s:
                kind = errors.retried_after(kind, (min(ends_s) - now_s) * _SECOND_NS)
            raise ClientFault(kind, f"{pending} uploads in parts are open")
        with _counted(self._beginning, tenant):
            await stored(self.book.put_upload(upload))

    # Batches

    async def batch_of(self, call: ClientCall, batch_id: str, *, is_of_messages: bool) -> ClientBatch:
        tenant = self.tenant_of(call)
        batch: ClientBatch | None = await stored(self.book.find_batch(batch_id))
        if batch is None or batch.tenant != tenant or batch.is_of_messages is not is_of_messages:
            raise ClientFault(errors.BATCH_NOT_FOUND)
        return batch

    def batches_of(self, call: ClientCall, *, is_of_messages: bool) -> list[ClientBatch]:
        tenant = self.tenant_of(call)
        return [
            each
            for each in self.book.batches.values()
            if each.tenant == tenant and each.is_of_messages is is_of_messages
        ]

    def check_room(self, tenant: TenantName) -> None:
        """Raise ClientFault where a further batch, or its result files, would be beyond a limit."""
        unfinished = sum(each.tenant == tenant and not each.has_ended for each in self.book.batches.values())
        if unfinished + self._creating.get(tenant, 0) >= self.config.tenant_unfinished_max:
            raise ClientFault(errors.BATCHES_EXCEEDED)
        self.check_files(tenant)

    def check_files(self, tenant: TenantName, further_bytes: int = 0) -> None:
        """Raise ClientFault where a further file, or so many bytes of it, would be beyond a limit."""
        config, sizes = self.config, self.book.sizes
        if sizes.files_of(tenant) >= config.tenant_files_max:
            raise ClientFault(errors.FILES_FULL, f"{config.tenant_files_max} files of this tenant are kept")
        if sizes.bytes_of(tenant) + further_bytes > config.tenant_max_bytes:
            raise ClientFault(errors.FILES_FULL, "of this tenant")
        if sizes.total + further_bytes > config.folder_max_bytes:
            raise ClientFault(errors.FILES_FULL)

    def new_batch(
        self, owner: BatchOwner, endpoint: str, input_file_id: str, metadata: dict[str, str] | None = None
    ) -> ClientBatch:
        now_s = self.now_s
        prefix = "msgbatch" if endpoint == MESSAGES_PATH else "batch"
        return ClientBatch(
            id=f"{prefix}_{urandom(12).hex()}",
            tenant=owner.tenant,
            key=owner.key,
            is_token=owner.is_token,
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            created_s=now_s,
            expires_s=now_s + WINDOW_S,
            metadata=metadata,
        )

    async def hand_in(self, batch: ClientBatch) -> None:
        """Store a new batch."""
        with _counted(self._creating, batch.tenant):
            try:
                await stored(self.book.put_new(batch))
            except FileMissing as error:
                raise ClientFault(errors.FILE_NOT_FOUND, param="input_file_id") from error
        self._log.info("batch_created", batch=batch.id, tenant=batch.tenant, file=batch.input_file_id)

    async def cancel(self, batch: ClientBatch) -> ClientBatch:
        if batch.has_ended or batch.status is BatchStatus.FINALIZING:
            raise ClientFault(errors.BATCH_NOT_CANCELLABLE, f"it is {batch.status}")
        change = self.book.change(batch.id, lambda each: cancelling(each, self.now_s), is_holder=False)
        try:
            changed: ClientBatch = await stored(change)
        except RowOutdated as error:
            raise ClientFault(errors.BATCH_NOT_FOUND) from error
        return changed


class PacedBody:
    """Body of an answer that is written in pieces, as fast as its client reads."""

    def __init__(self, call: ClientCall) -> None:
        self._exchange = call.exchange
        self._writable = Waiter()
        self._exchange.on_writable = self._writable.wake

    async def write(self, piece: bytes) -> None:
        if not self._exchange.write(piece):
            await self._writable.wait()


def new_file_id() -> str:
    return f"file-{urandom(12).hex()}"


def give(call: ClientCall, document: object) -> None:
    call.respond(200, msgspec.json.encode(document), _JSON)


def asked_of(call: ClientCall) -> dict[str, str]:
    """Parameters of the query."""
    query = call.exchange.target.decode("latin-1").partition("?")[2]
    try:
        return {name: texts[0] for name, texts in parse_qs(query, max_num_fields=_PARAMETERS_MAX).items()}
    except ValueError as error:
        raise ClientFault(errors.INVALID_FIELD, f"there are at most {_PARAMETERS_MAX}", "query") from error


def limit_in(asked: dict[str, str], default: int, most: int) -> int:
    told = asked.get("limit", str(default))
    if not told.isdecimal() or len(told) > _DIGITS_MAX or not 1 <= int(told) <= most:
        raise ClientFault(errors.INVALID_FIELD, f"it is 1 to {most}", "limit")
    return int(told)


async def stored(work: Any) -> Any:
    """Result of work on the store. Raises ClientFault where the disk fails."""
    try:
        return await work
    except OSError as error:
        raise _full(error) from error


async def order_in(call: ClientCall, settings: HttpSettings, kind: type[_Order]) -> _Order:
    """Order in a body of JSON. Raises ClientFault."""
    body = bytearray()

    async def take(piece: bytes) -> None:
        body.extend(piece)

    check_announced(call.exchange, ORDER_BYTES_MAX)
    call.exchange.go_on()
    await receive_body(call.exchange, settings, take, ORDER_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientFault(errors.INVALID_FIELD, str(error)) from error


def checked_keep_s(told_s: int, most_s: int, param: str) -> int:
    """Seconds for which a file is to be kept. Raises ClientFault."""
    if not _KEEP_MIN_S <= told_s <= most_s:
        raise ClientFault(errors.INVALID_FIELD, f"it is {_KEEP_MIN_S} to {most_s}", param)
    return told_s


def _full(error: OSError) -> ClientFault:
    is_full = error.errno in _FULL or "full" in str(error)
    return ClientFault(errors.FILES_FULL if is_full else errors.BATCHES_UNAVAILABLE)


def caller_of(call: ClientCall) -> Caller:
    assert call.caller is not None, "it was let in"
    return call.caller


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
