"""The one place where a gateway changes what a client wrote, on its way to an engine: by splicing, so that every other
byte arrives as it came. It never decodes a body to encode it again.

A body is one that `gateway.request.bodies` has read: a valid JSON object.
"""

from __future__ import annotations

import re
from itertools import islice

import msgspec

_SPACE = rb"[ \t\n\r]*"
_EMPTY = re.compile(_SPACE + rb"\}")
_SCALAR = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[-+.0-9eE]+|true|false|null', re.DOTALL)
_BACKSLASH = ord("\\")
_BRACE = ord("{")
_QUOTE = ord('"')
_SEARCHED_BYTES_MAX = 1 << 20
"""Of a larger body: nothing that a client sends may hold up all others."""
_LOOKS_MAX = 16
_LOOKED_BYTES_MAX = 8 << 20
"""Over all looks together: each reads the body up to where a member is named."""


class Anything(msgspec.Struct):
    """What is decoded as this is checked, and nothing of it is kept."""


_ANYTHING = msgspec.json.Decoder(Anything)


class Member:
    """A member of the body's outermost object that gateways set, whether clients know it or not."""

    def __init__(self, name: str) -> None:
        """`name` is ASCII and needs no escape."""
        assert name.isascii(), name
        self._quoted = f'"{name}"'.encode()
        self._escapes = sorted({f"\\u00{ord(letter) >> 4:x}".encode() for letter in name})
        """Each letter's begins with one of these."""
        self._plain = re.compile(re.escape(self._quoted) + _SPACE + b":" + _SPACE)
        letters = b"".join(b"(?:%b|\\\\u(?i:%04x))" % (re.escape(letter.encode()), ord(letter)) for letter in name)
        self._escaped = re.compile(b'"' + letters + b'"' + _SPACE + b":" + _SPACE)

    def set(self, body: bytes, value: bytes, *, is_named: bool) -> tuple[bytes, bytes | memoryview]:
        """The body in two parts, with this member and this value, a JSON text, wherever it stood before, else in front.
        `is_named`: whoever read the body has met a member of this name.

        A body that is too large to search, or names it too often or too oddly, gets it as the first member and as the
        last: whichever of several an engine believes, it is ours.
        """
        if not is_named:
            return self._in_front(body, value)
        spans = self._spans(body) if len(body) <= _SEARCHED_BYTES_MAX else []
        if not spans:
            return self._at_both_ends(body, value)
        parts, end = [], 0
        for start, stop in spans:
            parts += [body[end:start], value]
            end = stop
        return b"", b"".join((*parts, body[end:]))

    def _in_front(self, body: bytes, value: bytes) -> tuple[bytes, bytes | memoryview]:
        start = 1 if body[0] == _BRACE else len(body) - len(body.lstrip()) + 1
        comma = b"" if body[start] != _QUOTE and _EMPTY.match(body, start) else b","
        return b"%b%b:%b%b" % (body[:start], self._quoted, value, comma), memoryview(body)[start:]

    def _at_both_ends(self, body: bytes, value: bytes) -> tuple[bytes, bytes]:
        lead, rest = self._in_front(body, value)
        end = body.rindex(b"}") - len(body) + len(rest)
        return lead, b"".join((rest[:end], b",", self._quoted, b":", value, rest[end:]))

    def _spans(self, body: bytes) -> list[tuple[int, int]]:
        """Where its values stand; nowhere if that takes too long to find out."""
        may_be_escaped = any(escape in body for escape in self._escapes)
        pattern = self._escaped if may_be_escaped else self._plain
        named = list(islice(pattern.finditer(body), _LOOKS_MAX + 1))
        if len(named) > _LOOKS_MAX or len(named) * len(body) > _LOOKED_BYTES_MAX:
            return []
        spans = []
        for name in named:
            if not _is_outermost(body, name.start()):
                continue
            old = _SCALAR.match(body, name.end())
            if old is None:
                return []
            spans.append(old.span())
        return spans


def _is_outermost(body: bytes, start: int) -> bool:
    """Does a name of the outermost object begin here? Then the object could end with any other member in its place."""
    if body[start - 1] == _BACKSLASH:
        return False  # the name goes on to the left: it ends like ours
    try:
        _ANYTHING.decode(body[:start] + b'"":0}')
    except msgspec.DecodeError:
        return False
    return True


CACHE_SALT = Member("cache_salt")
"""vLLM's and SGLang's name for what sets one client's cache apart from others'."""
MODEL = Member("model")
