"""Forms that hold a file, received from clients: their fields, and their file on its way to where files are kept."""

from __future__ import annotations

from gateway.door import errors
from gateway.door.call import ClientCall
from gateway.door.errors import ClientFault
from gateway.door.settings import HttpSettings
from gateway.door.uploads import receive_body
from gateway.features.batches.forms import FormReader, PartBegins, PartEvent
from gateway.features.batches.intake import UPLOAD_S, FileUpload, checked_keep_s

FORM_BYTES_MAX = 64 * 1024
"""Bytes of a form beside its file."""
NAME_MAX = 255
_FIELD_BYTES_MAX = 4 * 1024


class FileForm:
    """Form with one file, and its other fields."""

    def __init__(self, upload: FileUpload, name: str) -> None:
        """`name` is that of the field with the file."""
        self._upload = upload
        self._name = name
        self._fields: dict[str, bytes] = {}
        self._part: PartBegins | None = None
        self._filename: str | None = None
        self._overhead = 0

    async def receive(self, call: ClientCall, settings: HttpSettings, file_bytes_max: int) -> None:
        """Take in the form as it arrives. Raises ClientFault, and OSError where the disk cannot take the file."""
        exchange = call.exchange
        exchange.go_on()
        try:
            reader = FormReader(exchange.headers.get("content-type", ""))
        except ValueError as error:
            raise ClientFault(errors.INVALID_HEADER, str(error), "content-type") from error

        async def take(piece: bytes) -> None:
            for event in reader.feed(piece):
                await self._take(event)

        try:
            await receive_body(exchange, settings, take, file_bytes_max + FORM_BYTES_MAX, whole_s=UPLOAD_S)
        except ValueError as error:
            raise ClientFault(errors.INVALID_FIELD, str(error)) from error
        if not reader.is_over:
            raise ClientFault(errors.INVALID_FIELD, "the form ends before its last delimiter")
        if self._filename is None:
            raise ClientFault(errors.INVALID_FIELD, "it is missing", self._name)

    async def _take(self, event: PartEvent) -> None:
        if isinstance(event, PartBegins):
            self._begin(event)
        elif self._part is not None:
            if self._part.name == self._name:
                await self._upload.write(event)
            else:
                self._add(self._part.name, event)

    def _begin(self, part: PartBegins) -> None:
        if part.name in self._fields or (part.name == self._name and self._filename is not None):
            raise ClientFault(errors.INVALID_FIELD, "the form has this field twice", part.name[:NAME_MAX])
        self._part = part
        if part.name == self._name:
            self._filename = (part.filename or "file")[:NAME_MAX]
        else:
            self._add(part.name, b"")

    def _add(self, name: str, data: bytes) -> None:
        self._overhead += len(name) + len(data)
        self._fields[name] = self._fields.get(name, b"") + data
        if self._overhead > FORM_BYTES_MAX or len(self._fields[name]) > _FIELD_BYTES_MAX:
            raise ClientFault(errors.INVALID_FIELD, "the form has too many or too long fields")

    def check_purpose(self) -> None:
        """Raise ClientFault unless the file is for batches."""
        if self._fields.get("purpose") != b"batch":
            raise ClientFault(errors.INVALID_FIELD, "it is `batch`", "purpose")

    @property
    def filename(self) -> str:
        """Name of the file, once the form is received."""
        assert self._filename is not None, "it was received"
        return self._filename

    def keep_s(self, most_s: int) -> int:
        """Seconds for which the file is to be kept. Raises ClientFault."""
        if self._fields.get("expires_after[anchor]", b"created_at") != b"created_at":
            raise ClientFault(errors.INVALID_FIELD, "it is `created_at`", "expires_after[anchor]")
        told = self._fields.get("expires_after[seconds]")
        if told is None:
            return most_s
        is_number = told.isdigit() and len(told) <= 10
        return checked_keep_s(int(told) if is_number else -1, most_s, "expires_after[seconds]")
