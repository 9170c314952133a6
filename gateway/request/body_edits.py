"""The one place where a gateway changes what a client wrote, on its way to an engine: by splicing, so that every other
byte arrives as it came. It never decodes a body to encode it again.

A body is one that `gateway.request.bodies` has read: a valid JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

import msgspec

from gateway.core.value import value

_SPACE = rb"[ \t\n\r]*"
_EMPTY = re.compile(_SPACE + rb"\}")
_SCALAR = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[-+.0-9eE]+|true|false|null', re.DOTALL)
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_BRACKETS_MAX = 4096
"""Strings and brackets inside one value that is replaced."""
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
        """See `set_members`."""
        if not is_named:  # nearly always
            return _in_front(body, self.named(value))
        return set_members(body, (Setting(self, value, is_named),))

    def named(self, text: bytes) -> bytes:
        """This member with this value, a JSON text."""
        return b"%b:%b" % (self._quoted, text)

    def spans(self, body: bytes) -> list[tuple[int, int]]:
        """Where its values stand; nowhere if that takes too long to find out."""
        if len(body) > _SEARCHED_BYTES_MAX:
            return []
        may_be_escaped = any(escape in body for escape in self._escapes)
        pattern = self._escaped if may_be_escaped else self._plain
        named = list(islice(pattern.finditer(body), _LOOKS_MAX + 1))
        if len(named) > _LOOKS_MAX or len(named) * len(body) > _LOOKED_BYTES_MAX:
            return []
        spans = []
        for name in named:
            if not _is_outermost(body, name.start()):
                continue
            end = _value_end(body, name.end())
            if end is None:
                return []
            spans.append((name.end(), end))
        return spans


@value
class Setting:
    """What a member is to be from now on."""

    member: Member
    text: bytes
    """Its value, a JSON text."""
    is_named: bool
    """Whoever read the body has met a member of this name."""


def set_members(body: bytes, settings: Iterable[Setting]) -> tuple[bytes, bytes | memoryview]:
    """The body in two parts, with these members and values, each wherever it stood before, else in front.

    What is named in a body that is too large to search, or too often or too oddly, is set as one of the first members
    and as one of the last: whichever of several an engine believes, it is ours.
    """
    front: list[bytes] = []
    back: list[bytes] = []
    spans: list[tuple[int, int, bytes]] = []
    for setting in settings:
        found = setting.member.spans(body) if setting.is_named else []
        spans += [(start, stop, setting.text) for start, stop in found]
        if not found:
            front.append(setting.member.named(setting.text))
            if setting.is_named:
                back.append(front[-1])
    lead, rest = (b"", body) if not front else _in_front(body, b",".join(front))
    if not spans and not back:
        return lead, rest
    return lead, _replaced(rest, sorted(spans), len(body) - len(rest), back)


def _in_front(body: bytes, members: bytes) -> tuple[bytes, bytes | memoryview]:
    start = 1 if body[0] == _BRACE else len(body) - len(body.lstrip()) + 1
    comma = b"" if body[start] != _QUOTE and _EMPTY.match(body, start) else b","
    return b"%b%b%b" % (body[:start], members, comma), memoryview(body)[start:]


def _replaced(rest: bytes | memoryview, spans: list[tuple[int, int, bytes]], cut: int, back: list[bytes]) -> bytes:
    """`cut`: what of the body stands before `rest`; spans count from the body's beginning."""
    parts: list[bytes | memoryview] = []
    end = 0
    for start, stop, text in spans:
        parts += [rest[end : start - cut], text]
        end = stop - cut
    parts.append(rest[end:])
    whole = b"".join(parts)
    if not back:
        return whole
    brace = whole.rindex(b"}")
    return b"".join((whole[:brace], b",", b",".join(back), whole[brace:]))


def _value_end(body: bytes, start: int) -> int | None:
    """Where a value ends that begins here; None if that takes too long to find out."""
    scalar = _SCALAR.match(body, start)
    if scalar is not None:
        return scalar.end()
    depth = 0
    for each in islice(_BRACKETS.finditer(body, start), _BRACKETS_MAX):
        depth += each[0] in (b"{", b"[")
        depth -= each[0] in (b"}", b"]")
        if depth == 0:
            return each.end()
    return None


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
