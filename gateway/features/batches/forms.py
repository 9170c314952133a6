"""Reader of multipart/form-data (RFC 7578), fed as bytes arrive: python-multipart finds the parts, within limits that
stand here. It holds no more than a delimiter and a part's head, and does no I/O.
"""

from __future__ import annotations

import logging
import re
from itertools import islice

from msgspec import Struct
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

HEAD_BYTES_MAX = 8 * 1024
"""Bytes of a part's head: the names and values of its fields."""
HEAD_FIELDS_MAX = 8
PARTS_MAX = 32
"""Parts of a form. Lines that begin as a delimiter does count as well: each takes the parser microseconds."""
BESIDE_BYTES_MAX = 8 * 1024
"""Bytes of a form that are in no head and no content: delimiters, padding, and what stands before or behind them."""
OPTIONS_MAX = 8
"""Parameters of a content type or disposition that are read; further ones are ignored."""
_BOUNDARY_BYTES_MAX = 70
_OPTION = re.compile(r';[ \t]*([^\s;="]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_STEP_BYTES = 4 * 1024
"""Bytes between two checks of the limits: padding takes the parser half a microsecond a byte."""

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a client's faults are in its answer, not in a log


class PartBegins(Struct, frozen=True):
    name: str
    filename: str | None


PartEvent = PartBegins | bytes
"""Beginning of a part, or bytes of its content."""


class FormReader:
    """Reader of one form."""

    def __init__(self, content_type: str) -> None:
        """Raises ValueError where the type has no boundary."""
        told = content_type.partition(";")[0].strip().lower()
        boundary = _options(content_type).get("boundary", "").encode("latin-1", "replace")
        if told != "multipart/form-data" or not 1 <= len(boundary) <= _BOUNDARY_BYTES_MAX:
            raise ValueError("the content type should be multipart/form-data with a boundary")
        self.is_over = False
        """True once the last delimiter has been read; what follows it is dropped."""
        self._delimiter = b"\r\n--" + boundary
        self._tail = b"\r\n"
        """Last bytes that were fed, in which a delimiter may begin."""
        self._delimiters = 0
        self._fed = 0
        self._told = 0
        """Bytes of heads and contents among those that were fed."""
        self._parts = 0
        self._field = b""
        self._value = b""
        self._head_bytes = 0
        self._disposition = b""
        self._events: list[PartBegins | bytearray] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_begin": self._on_header_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_end": self._on_end,
            },
            max_header_count=HEAD_FIELDS_MAX,
            max_header_size=HEAD_BYTES_MAX,
        )

    def feed(self, data: bytes) -> list[PartEvent]:
        """Take in bytes, and give what they hold. Raises ValueError for a malformed form, or beyond a limit; it
        may be fed nothing after that."""
        searched = self._tail + data
        self._delimiters += searched.count(self._delimiter)
        self._tail = searched[1 - len(self._delimiter) :]
        if self._delimiters > PARTS_MAX + 1:
            raise ValueError(f"the form has more than {PARTS_MAX} parts")
        for begin in range(0, len(data), _STEP_BYTES):
            self._step(data[begin : begin + _STEP_BYTES])
        events, self._events = self._events, []
        return [bytes(each) if isinstance(each, bytearray) else each for each in events]

    def _step(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise ValueError(f"the form is malformed at byte {self._fed + error.offset}: {error}") from error
        self._fed += len(data)
        if self._fed - self._told > BESIDE_BYTES_MAX + len(self._delimiter):
            raise ValueError(f"the form has more than {BESIDE_BYTES_MAX} bytes outside its parts")

    # Calls by the parser. What they raise ends its step, and comes out of `feed`.

    def _on_part_begin(self) -> None:
        self._parts += 1
        self._head_bytes, self._disposition = 0, b""

    def _on_header_begin(self) -> None:
        self._field = self._value = b""

    def _on_header_field(self, data: bytes, begin: int, end: int) -> None:
        self._field += self._of_head(data[begin:end])

    def _on_header_value(self, data: bytes, begin: int, end: int) -> None:
        self._value += self._of_head(data[begin:end])

    def _of_head(self, data: bytes) -> bytes:
        self._told += len(data)
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError(f"the head of part {self._parts} is longer than {HEAD_BYTES_MAX} bytes")
        return data

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value

    def _on_headers_finished(self) -> None:
        options = _options(self._disposition.decode("utf-8", "replace"))
        if (name := options.get("name")) is None:
            raise ValueError(f"part {self._parts} has no name")
        self._events.append(PartBegins(name, options.get("filename")))

    def _on_part_data(self, data: bytes, begin: int, end: int) -> None:
        self._told += end - begin
        if not self._events or not isinstance(self._events[-1], bytearray):
            self._events.append(bytearray())
        content = self._events[-1]
        assert isinstance(content, bytearray), "it was just added"
        content += memoryview(data)[begin:end]

    def _on_end(self) -> None:
        self.is_over = True


def _options(field: str) -> dict[str, str]:
    """Parameters of a field's value, by name in lower case."""
    found = islice(_OPTION.finditer(field), OPTIONS_MAX)
    return {each[1].lower(): each[3] or each[2] or "" for each in found}
