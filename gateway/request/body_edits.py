"""Edits of a client's body on its way to an engine, made by splicing, so that every other byte is unchanged. All
changes of bodies are made here, and none decodes a body to encode it again.

A body is one that `gateway.request.bodies` has read: a valid JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter

import msgspec
import numpy as np
from msgspec import Struct

_SPACE = rb"[ \t\n\r]*"
_COMMA = re.compile(_SPACE + b"," + _SPACE)
_EMPTY = re.compile(_SPACE + rb"\}")
_SCALAR = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[-+.0-9eE]+|true|false|null', re.DOTALL)
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_BRACKETS_MAX = 4096
"""Limit of strings and brackets inside one value that is replaced."""
_ALL_BRACKETS_MAX = 4 * _BRACKETS_MAX
"""Limit of strings and brackets inside all values that are replaced."""
_BACKSLASH = ord("\\")
_BRACE = ord("{")
_QUOTE = ord('"')
_SEARCHED_BYTES_MAX = 1 << 20
"""Largest body that is searched, so that no client's body delays other requests."""
_LOOKS_MAX = 16
"""Limit of occurrences of one member's name."""
_LOOKED_BYTES_MAX = 8 << 20
"""Bytes read for all members of a body together; each check reads from one name to another."""


class Anything(msgspec.Struct):
    """Decoding target that checks JSON and keeps none of it."""


_ANYTHING = msgspec.json.Decoder(Anything)


class BodyMember:
    """Member of the body's outermost object that gateways set, whether or not clients use it."""

    def __init__(self, name: str) -> None:
        """Set up the member. `name` is ASCII and needs no escape."""
        assert name.isascii(), name
        self._quoted = f'"{name}"'.encode()
        self._escapes = sorted({f"\\u00{ord(letter) >> 4:x}".encode() for letter in name})
        """Beginnings of the escapes of the name's letters."""
        self._plain = re.compile(re.escape(self._quoted) + _SPACE + b":" + _SPACE)
        letters = b"".join(b"(?:%b|\\\\u(?i:%04x))" % (re.escape(letter.encode()), ord(letter)) for letter in name)
        self._escaped = re.compile(b'"' + letters + b'"' + _SPACE + b":" + _SPACE)

    def set(self, body: bytes, value: bytes, *, is_named: bool) -> tuple[bytes, bytes | memoryview]:
        """Set one member, like `set_members`."""
        if not is_named:  # nearly always
            return _in_front(body, self.named(value))
        return set_members(body, (BodySetting(self, value, is_named),))

    def named(self, text: bytes) -> bytes:
        """Return this member with the value `text`, a JSON text."""
        return b"%b:%b" % (self._quoted, text)

    def may_be_escaped_in(self, body: bytes) -> bool:
        return any(escape in body for escape in self._escapes)

    def may_be_in(self, body: bytes) -> bool:
        """Return false if the body certainly has no member of this name, at any depth."""
        return self._quoted in body or self.may_be_escaped_in(body)

    def named_in(self, body: bytes, *, may_be_escaped: bool) -> list[tuple[int, int]]:
        """Positions of names like this and of their values, in the outermost object or another. Stops at one more than
        the limit."""
        pattern = self._escaped if may_be_escaped else self._plain
        return [match.span() for match in islice(pattern.finditer(body), _LOOKS_MAX + 1)]


class BodySetting(Struct, frozen=True):
    """Value that a member is to get."""

    member: BodyMember
    text: bytes
    """Value as a JSON text."""
    is_named: bool
    """True if the body was found to have a member of this name."""


def set_members(body: bytes, settings: Iterable[BodySetting]) -> tuple[bytes, bytes | memoryview]:
    """Return the body in two parts, with these members and values, each at its present place, else in front.

    A named member that cannot be located, because the body is too large or has the name too often or in odd ways, is
    set both as a first and as a last member: engines take one or the other of several, and both are the gateway's.
    """
    front: list[bytes] = []
    back: list[bytes] = []
    spans: list[tuple[int, int, bytes]] = []
    wanted = tuple(settings)
    known = _Search(body).spans_of([each.member for each in wanted if each.is_named])
    for setting in wanted:
        found = known.get(setting.member, []) if setting.is_named else []
        spans += [(start, stop, setting.text) for start, stop in found]
        if not found:
            front.append(setting.member.named(setting.text))
            if setting.is_named:
                back.append(front[-1])
    lead, rest = (b"", body) if not front else _in_front(body, b",".join(front))
    if not spans and not back:
        return lead, rest
    return lead, _replaced(rest, sorted(spans), len(body) - len(rest), back)


def without(body: bytes, value: msgspec.Raw) -> bytes:
    """Return the body without the member of this value, which the outermost object has beside others. The value must
    have been decoded from this very body: its address tells where it stands, however long the body is."""
    view = memoryview(value)
    start = address_of(view) - address_of(memoryview(body))
    stop = start + len(view)
    assert 0 < start < stop < len(body), "the value was decoded from this body"
    name = body.rindex(b'"', 0, body.rindex(b'"', 0, start))  # a name of plain letters, escaped or not, has no quote
    comma = _COMMA.match(body, stop)
    if comma is not None:
        return b"".join((memoryview(body)[:name], memoryview(body)[comma.end() :]))
    return b"".join((memoryview(body)[: body.rindex(b",", 0, name)], memoryview(body)[stop:]))


def address_of(view: memoryview) -> int:
    """Address of a view. Raw JSON that msgspec decodes lies inside the buffer that it was decoded from."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _in_front(body: bytes, members: bytes) -> tuple[bytes, bytes | memoryview]:
    start = 1 if body[0] == _BRACE else len(body) - len(body.lstrip()) + 1
    comma = b"" if body[start] != _QUOTE and _EMPTY.match(body, start) else b","
    return b"%b%b%b" % (body[:start], members, comma), memoryview(body)[start:]


def _replaced(rest: bytes | memoryview, spans: list[tuple[int, int, bytes]], cut: int, back: list[bytes]) -> bytes:
    """Replace values in `rest`. `cut`: length of the body before `rest`; spans count from the body's beginning."""
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


class _Search:
    """Search for the values of members in one body. Its cost is bounded for all members together."""

    __slots__ = ("_body", "_brackets_left", "_bytes_left", "_outer")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._outer = 0
        """Position at which a name of the outermost object begins."""
        self._bytes_left = _LOOKED_BYTES_MAX
        self._brackets_left = _ALL_BRACKETS_MAX

    def spans_of(self, members: Sequence[BodyMember]) -> dict[BodyMember, list[tuple[int, int]]]:
        """Value spans of these members, each of which the outermost object has; members that take too long to find are
        left out."""
        body = self._body
        if not members or len(body) > _SEARCHED_BYTES_MAX:
            return {}
        named = {member: self._named(member) for member in members}
        spans: dict[BodyMember, list[tuple[int, int]]] = {
            member: [] for member, names in named.items() if 0 < len(names) <= _LOOKS_MAX
        }
        self._outer = body.index(b"{") + 1
        in_order = sorted(((*name, member) for member in spans for name in named[member]), key=itemgetter(0))
        for start, end, member in in_order:
            if member not in spans:
                continue
            is_outermost = len(named[member]) == 1 or self._is_outermost(start)
            if is_outermost is False:
                continue
            stop = None
            if is_outermost:
                self._outer = start
                stop = self._value_end(end)
            if stop is None:
                del spans[member]
            else:
                spans[member].append((end, stop))
        return spans

    def _named(self, member: BodyMember) -> list[tuple[int, int]]:
        """Positions of a member's name; none if the search would take too long. Escaped names are slower to find, and
        hardly any client writes them except to do harm."""
        may_be_escaped = member.may_be_escaped_in(self._body)
        if may_be_escaped:
            self._bytes_left -= len(self._body)
        return [] if self._bytes_left < 0 else member.named_in(self._body, may_be_escaped=may_be_escaped)

    def _is_outermost(self, start: int) -> bool | None:
        """Return true if a name of the outermost object begins here: then only whole members stand between it and a
        name known to be the outermost object's. None if the check would take too long."""
        body, outer = self._body, self._outer
        if body[start - 1] == _BACKSLASH:
            return False  # the name extends to the left and only ends like this member's
        self._bytes_left -= start - outer
        if self._bytes_left < 0:
            return None
        try:
            _ANYTHING.decode(b"".join((b"{", memoryview(body)[outer:start], b'"":0}')))
        except msgspec.DecodeError:
            return False
        return True

    def _value_end(self, start: int) -> int | None:
        """End of the value that begins here; None if the search would take too long."""
        scalar = _SCALAR.match(self._body, start)
        if scalar is not None:
            return scalar.end()
        depth = 0
        for each in islice(_BRACKETS.finditer(self._body, start), min(_BRACKETS_MAX, self._brackets_left)):
            self._brackets_left -= 1
            depth += each[0] in (b"{", b"[")
            depth -= each[0] in (b"}", b"]")
            if depth == 0:
                return each.end()
        return None


CACHE_SALT = BodyMember("cache_salt")
"""Member of vLLM and SGLang that keeps one client's cache apart from others'."""
MODEL = BodyMember("model")
