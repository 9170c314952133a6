"""Parser of multipart/form-data (RFC 7578), fed as bytes arrive. It holds no more than a delimiter and a part's head,
and does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct

_HEAD_BYTES_MAX = 8 * 1024
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(r'[;\s]name="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_FILENAME = re.compile(r'[;\s]filename="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


class PartBegins(Struct, frozen=True):
    name: str
    filename: str | None


class PartEnds(Struct, frozen=True):
    pass


PartEvent = PartBegins | PartEnds | bytes
"""Beginning of a part, bytes of it, or its end."""


class _State(Enum):
    BODY = auto()
    DELIMITER = auto()
    HEAD = auto()
    OVER = auto()


class MultipartParser:
    """Parser of one body."""

    def __init__(self, content_type: str) -> None:
        """Raises ValueError where the type has no boundary."""
        found = _BOUNDARY.search(content_type)
        if not content_type.lower().startswith("multipart/form-data") or found is None:
            raise ValueError("the content type should be multipart/form-data with a boundary")
        self._delimiter = b"\r\n--" + (found[1] or found[2]).encode()
        self._rest = b"\r\n"
        self._state = _State.BODY
        self._is_in_part = False

    @property
    def is_over(self) -> bool:
        """True once the last delimiter has been read; what follows it is dropped."""
        return self._state is _State.OVER

    def feed(self, data: bytes) -> Iterator[PartEvent]:
        """Take in bytes, and give what they hold. Raises ValueError for a malformed body."""
        self._rest += data
        while (event := self._next()) is not None:
            if event != b"":
                yield event

    def _next(self) -> PartEvent | None:
        """Next event, or empty bytes after a step without one; None: more bytes are needed."""
        match self._state:
            case _State.BODY:
                return self._body()
            case _State.DELIMITER:
                return self._after_delimiter()
            case _State.HEAD:
                return self._head()
            case _State.OVER:
                self._rest = b""
                return None

    def _body(self) -> PartEvent | None:
        at = self._rest.find(self._delimiter)
        if at < 0:
            keep = len(self._delimiter) - 1
            data, self._rest = self._rest[:-keep], self._rest[-keep:]
            return data if data and self._is_in_part else None
        if at and self._is_in_part:
            data, self._rest = self._rest[:at], self._rest[at:]
            return data
        self._rest = self._rest[at + len(self._delimiter) :]
        self._state = _State.DELIMITER
        was_in_part, self._is_in_part = self._is_in_part, False
        return PartEnds() if was_in_part else b""

    def _after_delimiter(self) -> PartEvent | None:
        if len(self._rest) < 2:
            return None
        follows, self._rest = self._rest[:2], self._rest[2:]
        if follows == b"--":
            self._state = _State.OVER
        elif follows == b"\r\n":
            self._state = _State.HEAD
        else:
            raise ValueError("a delimiter is malformed")
        return b""

    def _head(self) -> PartEvent | None:
        at = self._rest.find(b"\r\n\r\n")
        if at > _HEAD_BYTES_MAX or (at < 0 and len(self._rest) > _HEAD_BYTES_MAX):
            raise ValueError("the head of a part is too long")
        if at < 0:
            return None
        head = self._rest[:at].decode("utf-8", "replace")
        self._rest = self._rest[at + 4 :]
        name = _NAME.search(head)
        if name is None:
            raise ValueError("a part has no name")
        filename = _FILENAME.search(head)
        self._state, self._is_in_part = _State.BODY, True
        return PartBegins(name[1], None if filename is None else filename[1])
