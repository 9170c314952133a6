"""OpenAI's Uploads API at the clients' address: a file in parts, each of which is kept once it is answered. A client's
text is in no log line and in no error.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from os import urandom
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.routes import Answer
from gateway.features.batches.database import RowOutdated
from gateway.features.batches.file_forms import FORM_BYTES_MAX, NAME_MAX, FileForm
from gateway.features.batches.intake import (
    ORDER_BYTES_MAX,
    BatchIntake,
    FileUpload,
    checked_keep_s,
    give,
    order_in,
    stored,
)
from gateway.features.batches.state import UPLOAD_WINDOW_S, StoredFile, UploadInParts, UploadStatus

PART_BYTES_MAX = 64 * 1024 * 1024
"""Largest part, as in OpenAI's API."""
PARTS_MAX = 256
"""Parts of one upload."""
_STORED_SHARE = 2
"""Bytes of an upload's parts, in its size: a client sends a part anew whose answer was lost."""
_JOIN_S = 600.0
"""Longest time in which parts become one file."""
_PIECE_BYTES = 1024 * 1024


class _Expiry(Struct):
    seconds: int
    anchor: Literal["created_at"] = "created_at"


class _UploadOrder(Struct):
    """Body that begins an upload. Other fields are ignored."""

    bytes: int
    filename: str
    purpose: str
    mime_type: str
    expires_after: _Expiry | None = None


class _Completion(Struct):
    """Body that completes an upload."""

    part_ids: list[str]
    md5: str | None = None


class UploadApi:
    """Routes of uploads in parts."""

    def __init__(self, intake: BatchIntake) -> None:
        self._intake = intake
        self._book = intake.book

    def find(self, path: str) -> Mapping[str, Answer] | None:
        """Answers by method; None for other paths."""
        if not f"{path}/".startswith("/v1/uploads/"):
            return None
        match path.split("/")[3:]:
            case []:
                return {"POST": self._create}
            case [_, "parts"]:
                return {"POST": self._add_part}
            case [_, "complete"]:
                return {"POST": self._complete}
            case [_, "cancel"]:
                return {"POST": self._cancel}
            case _:
                return None

    async def _create(self, call: ClientCall) -> None:
        intake = self._intake
        tenant, size_max = intake.tenant_of(call), intake.config.file_max_bytes
        order = await order_in(call, intake.settings, _UploadOrder)
        if order.purpose != "batch":
            raise ClientFault(errors.INVALID_FIELD, "it is `batch`", "purpose")
        if not 1 <= order.bytes <= size_max:
            raise ClientFault(errors.INVALID_FIELD, f"it is 1 to {size_max}", "bytes")
        keep_s = intake.keep_s
        if order.expires_after is not None:
            keep_s = checked_keep_s(order.expires_after.seconds, keep_s, "expires_after.seconds")
        intake.check_files(tenant, _STORED_SHARE * order.bytes)
        now_s = intake.now_s
        upload = UploadInParts(
            id=f"upload_{urandom(12).hex()}",
            tenant=tenant,
            filename=order.filename[:NAME_MAX] or "file",
            size=order.bytes,
            created_s=now_s,
            expires_s=now_s + UPLOAD_WINDOW_S,
            keep_s=keep_s,
        )
        await intake.begin_upload(upload)
        self._give(call, upload)

    async def _add_part(self, call: ClientCall) -> None:
        intake = self._intake
        whole = await self._pending_of(call)
        bytes_max = self._part_bytes_max(whole)
        try:
            async with intake.receiving(call, bytes_max, FORM_BYTES_MAX) as upload:
                form = FileForm(upload, "data")
                await form.receive(call, intake.settings, bytes_max)
                await self._pending_of(call)
                if upload.size > (bytes_max := self._part_bytes_max(whole)):
                    raise ClientFault(errors.BODY_TOO_LARGE)
                made = intake.new_file(upload, form.filename, intake.keep_s)
                part = replace(made, upload=whole.id, expires_s=whole.expires_s)
                await intake.keep(upload, part)
        except RowOutdated:
            raise self._not_pending(await self._seen_anew(call)) from None
        except ClientFault as fault:
            if fault.kind is not errors.BODY_TOO_LARGE:
                raise
            told = f"it is at most {bytes_max} bytes: {PART_BYTES_MAX} a part, {_STORED_SHARE * whole.size} in all"
            raise ClientFault(errors.INVALID_FIELD, told, "data") from fault
        give(call, part.part_document())

    def _part_bytes_max(self, whole: UploadInParts) -> int:
        """Bytes of a further part. Raises ClientFault where there may be none."""
        parts = self._book.parts.get(whole.id, {})
        if len(parts) >= PARTS_MAX:
            raise ClientFault(errors.INVALID_FIELD, f"an upload has at most {PARTS_MAX} parts", "data")
        left = _STORED_SHARE * whole.size - sum(each.size for each in parts.values())
        return max(0, min(PART_BYTES_MAX, left))

    async def _complete(self, call: ClientCall) -> None:
        order = await order_in(call, self._intake.settings, _Completion)
        whole = await self._upload_of(call)
        try:
            if self._is_pending(whole):
                whole = await self._joined(call, whole, order)
        except RowOutdated:  # another call has completed it, or cancelled it, or its hour is over
            whole = await self._seen_anew(call)
        if whole.status is not UploadStatus.COMPLETED or whole.parts_digest != _digest_of(order.part_ids):
            raise self._not_pending(whole)
        self._give(call, whole)

    async def _joined(self, call: ClientCall, whole: UploadInParts, order: _Completion) -> UploadInParts:
        """Upload once its parts are one file. Raises RowOutdated where it is not pending any more."""
        intake = self._intake
        parts = await self._parts_of(whole, order.part_ids)
        async with intake.receiving(call, whole.size, ORDER_BYTES_MAX) as copy:
            async with asyncio.timeout(_JOIN_S):
                md5 = await self._join(whole, parts, copy)
            if order.md5 is not None and order.md5.lower() != md5:
                raise ClientFault(errors.INVALID_FIELD, f"the file's is {md5}", "md5")
            file = intake.new_file(copy, whole.filename, whole.keep_s)
            digest = _digest_of(order.part_ids)
            done = replace(whole, status=UploadStatus.COMPLETED, file=file, parts_digest=digest)
            await intake.keep(copy, file, done)
        return done

    async def _parts_of(self, whole: UploadInParts, part_ids: Sequence[str]) -> list[StoredFile]:
        """Parts of an upload, which have its size together. Raises ClientFault, and RowOutdated where one is missing
        and the upload is not pending any more."""
        if len(part_ids) > PARTS_MAX or len(set(part_ids)) < len(part_ids):
            raise ClientFault(errors.INVALID_FIELD, f"they are at most {PARTS_MAX}, each once", "part_ids")
        found: list[StoredFile | None] = await stored(self._book.find_parts(whole.id, part_ids))
        parts = []
        for place, part in enumerate(found):
            if part is None:
                self._check_pending(whole)
                at = f"part_ids[{place}]"
                raise ClientFault(errors.INVALID_FIELD, f"{at} is no part of this upload", at)
            parts.append(part)
        size = sum(each.size for each in parts)
        if size != whole.size:
            told = f"the parts have {size} bytes, and the upload was begun for {whole.size}"
            raise ClientFault(errors.INVALID_FIELD, told, "part_ids")
        return parts

    def _check_pending(self, whole: UploadInParts) -> None:
        """Raise RowOutdated for an upload that is known to be pending no more."""
        known = self._book.uploads.get(whole.id)
        if known is None or not self._is_pending(known):
            raise RowOutdated(whole.id)

    async def _join(self, whole: UploadInParts, parts: Sequence[StoredFile], copy: FileUpload) -> str:
        """Write parts one after another. Returns the MD5 of all, in hexadecimal. Raises OSError, and RowOutdated where
        the upload is not pending any more."""
        digest = hashlib.md5(usedforsecurity=False)

        def read(file: BinaryIO) -> bytes:
            piece = file.read(_PIECE_BYTES)
            digest.update(piece)
            return piece

        book = self._book
        try:
            for part in parts:
                with await book.in_files(book.folder.read, part.id) as opened:
                    while piece := await book.in_files(read, opened):
                        await copy.write(piece)
            if copy.size != whole.size:
                raise OSError("a part is shorter than its row says")
        except OSError:
            await book.look()
            self._check_pending(whole)  # another call may have ended it, after which its parts are deleted
            raise
        return digest.hexdigest()

    async def _cancel(self, call: ClientCall) -> None:
        whole = await self._upload_of(call)
        if self._is_pending(whole):
            cancelled = replace(whole, status=UploadStatus.CANCELLED)
            try:
                await stored(self._book.put_upload(cancelled))
                whole = cancelled
            except RowOutdated:
                whole = await self._seen_anew(call)
        if whole.status is not UploadStatus.CANCELLED:
            raise self._not_pending(whole)
        self._give(call, whole)

    def _give(self, call: ClientCall, whole: UploadInParts) -> None:
        give(call, whole.document(self._intake.now_s))

    def _is_pending(self, whole: UploadInParts) -> bool:
        return whole.status_at(self._intake.now_s) is UploadStatus.PENDING

    def _not_pending(self, whole: UploadInParts) -> ClientFault:
        return ClientFault(errors.UPLOAD_NOT_PENDING, f"it is {whole.status_at(self._intake.now_s)}")

    async def _pending_of(self, call: ClientCall) -> UploadInParts:
        whole = await self._upload_of(call)
        if not self._is_pending(whole):
            raise self._not_pending(whole)
        return whole

    async def _seen_anew(self, call: ClientCall) -> UploadInParts:
        await stored(self._book.look())
        return await self._upload_of(call)

    async def _upload_of(self, call: ClientCall) -> UploadInParts:
        tenant = self._intake.tenant_of(call)
        whole: Any = await stored(self._book.find_upload(call.path.split("/")[3]))
        if whole is None or whole.tenant != tenant:
            raise ClientFault(errors.UPLOAD_NOT_FOUND)
        return whole  # type: ignore[no-any-return]


def _digest_of(part_ids: Sequence[str]) -> str:
    return hashlib.sha256(msgspec.json.encode(part_ids)).hexdigest()
