"""Content of a request's body: bytes of text for the model, tokens of other parts, and the category of the text.

It counts what engines will read rather than what was sent: an escape counts as its character, and a picture as some
tokens, however long its data. The category is derived from a few windows of the text, so a long prompt costs no more
than a short one. No text is kept, and no request fails because of its content.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gateway.core.vocabulary import Category, Classifier, ModelName, TenantName
from gateway.request.bodies import Body, is_set
from gateway.request.classifying import SAMPLE_BYTES, classify
from gateway.request.media import MediaKind, MediaMembers, MediaTokens, kind_of, kind_of_data

_TEXTS: Final = ("instructions", "system", "messages", "input", "prompt", "query", "documents")
"""Members of bodies that prompts are made of, besides tools."""
_MESSAGE_TOKENS: Final = 5
"""Tokens that ChatML adds for each message: its start, its role and its end."""
_OPENING_TOKENS: Final = 3
"""Tokens that precede the answer."""
_TOOLS_TOKENS: Final = 64
"""Tokens that templates add about tools, besides the tools themselves."""
_DEPTH_MAX: Final = 4
"""Levels that are parsed: a message, its parts, and the parts of a tool's result. Deeper levels count as they were
sent."""
_ITEMS_MAX: Final = 8192
"""Limit of braces in a member and of commas in a list; a longer one counts as text without being parsed, so that no
client's body delays other requests."""
_WHOLE_BYTES_MAX: Final = 64 * 1024
"""Length above which a text's escapes are counted in a few windows only."""
_WINDOWS: Final = 4
_WINDOW: Final = SAMPLE_BYTES // _WINDOWS
_ESCAPED_WINDOW: Final = 6 * _WINDOW
"""Bytes of JSON that are enough for a window of text, even if all of it is escaped."""
_COUNTED_WINDOW: Final = 4096
_ESCAPE: Final = b"\\"
_ESCAPE_LENGTH_MAX: Final = 12
"""Length of the longest escape, that of a character beyond the basic plane."""
_CHARACTER_BYTES_MAX: Final = 4
_BACKSLASHES_MAX: Final = 64
"""Backslashes that are looked through to see which of them are escaped; even, so that within a longer run they count as
pairs."""
_HIGH_SURROGATES: Final = (rb"\ud8", rb"\ud9", rb"\uda", rb"\udb")
_ABSENT = msgspec.Raw()
_Read = TypeVar("_Read")


class Content(Struct, frozen=True):
    """Sizes and category of a body's content."""

    text_bytes: int
    """Bytes of text, at least 1; 0 means that the body was not read."""
    extra_tokens: int
    category: Category


NOTHING_READ: Final = Content(0, 0, Category.MIXED)


class ContentReader:
    """Reads the content of bodies for models whose pools need token counts."""

    def __init__(
        self,
        category_of: Callable[[TenantName], Category | None],
        counts: Callable[[ModelName], bool],
        media_tokens: MediaTokens,
        classifier: Callable[[], Classifier | None] = lambda: None,
    ) -> None:
        """Set up the reader. `category_of`: category of all prompts of a tenant, where one is declared. `counts`: true
        for models whose pools are chosen by tokens; bodies for others are not read. `media_tokens` estimates media
        parts. `classifier`: a plug-in's, in place of the built-in one."""
        self._category_of = category_of
        self._counts = counts
        self._media_tokens = media_tokens
        self._classifier = classifier

    def read(self, body: Body, model: ModelName, tenant: TenantName, said: Category | None) -> Content | None:
        """Return the content; None if the model does not need it. `said`: category declared by the client."""
        if not self._counts(model):
            return None
        return content_of(
            body,
            partial(self._media_tokens.of, model),
            media_tokens_max=self._media_tokens.assumed_max(model),
            category=said or self._category_of(tenant),
            classifier=self._classifier() or classify,
        )


class _Item(MediaMembers):
    """Message, part of one, or item of a responses call."""

    role: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT
    name: msgspec.Raw = _ABSENT
    arguments: msgspec.Raw = _ABSENT
    output: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    thinking: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT


class _TextSource(msgspec.Struct):
    """Source of a document that is text, or parts of its own."""

    data: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


_ITEM = msgspec.json.Decoder(_Item)
_TEXT_SOURCE = msgspec.json.Decoder(_TextSource)
_ITEMS = msgspec.json.Decoder(list[_Item])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


def content_of(
    body: Body,
    media_tokens: Callable[[MediaKind], int],
    *,
    media_tokens_max: int | None = None,
    category: Category | None = None,
    classifier: Classifier = classify,
) -> Content:
    """Return the content of a body. `media_tokens_max` bounds the tokens of all media parts together. `category` is the
    declared category of the text; without one the classifier decides."""
    found = _Found(media_tokens)
    tools = getattr(body, "tools", _ABSENT)
    if is_set(tools):
        found.texts.append(memoryview(tools))
        found.tokens += _TOOLS_TOKENS
    for name in _TEXTS:
        part = getattr(body, name, _ABSENT)
        if is_set(part):
            found.take_whole(part)
    if found.messages:
        found.tokens += found.messages * _MESSAGE_TOKENS + _OPENING_TOKENS
    text = b"".join(found.texts)
    text_bytes, sample = _measured(text, wants_sample=category is None)
    if category is None:
        category = classifier(sample) if sample else Category.MIXED
    media = found.media if media_tokens_max is None else min(found.media, media_tokens_max)
    return Content(max(1, text_bytes), found.tokens + media, category)


class _Found:
    """Content found so far, in the order of the body."""

    __slots__ = ("_media_tokens", "media", "messages", "texts", "tokens")

    def __init__(self, media_tokens: Callable[[MediaKind], int]) -> None:
        self._media_tokens = media_tokens
        self.texts: list[memoryview] = []
        """Strings as they stand in the body: without their quotes, with their escapes."""
        self.messages = 0
        self.media = 0
        """Tokens of media parts."""
        self.tokens = 0

    def take_whole(self, raw: msgspec.Raw) -> None:
        """Take a member of the body; one with too many parts counts as text."""
        view = memoryview(raw)
        if bytes(view).count(b"{") > _ITEMS_MAX:
            self.texts.append(view)
        else:
            self.take(raw, _DEPTH_MAX)

    def take(self, raw: msgspec.Raw, depth: int) -> None:
        view = memoryview(raw)
        if not view:
            return
        if depth == 0:
            self.texts.append(view)
            return
        match view[0]:
            case 0x22:  # a string
                kind = kind_of_data(view)
                if kind is not None:
                    self.media += self._media_tokens(kind)
                else:
                    self.texts.append(view[1:-1])
            case 0x5B:  # an array
                self._take_all(raw, view, depth)
            case 0x7B:  # an object
                self._take_item(_decoded(_ITEM, raw), view, depth)
            case _:
                pass

    def _take_all(self, raw: msgspec.Raw, view: memoryview, depth: int) -> None:
        if _is_number(view[1:_ESCAPE_LENGTH_MAX]):
            self.tokens += bytes(view).count(b",") + 1
            return
        items = _decoded(_ITEMS, raw)
        if items is not None:
            for item in items:
                self._take_item(item, view, depth)
            return
        if bytes(view).count(b",") > _ITEMS_MAX:
            self.texts.append(view)
            return
        for each in _decoded(_RAWS, raw) or ():
            self.take(each, depth - 1)

    def _take_item(self, item: _Item | None, view: memoryview, depth: int) -> None:
        if item is None:
            self.texts.append(view)
            return
        self.messages += item.role is not _ABSENT
        kind = kind_of(item)
        if kind is not None:
            self.media += self._media_tokens(kind)
            return
        for part in (item.content, item.text, item.output, item.arguments, item.thinking, item.reasoning_content):
            if part is not _ABSENT:
                self.take(part, depth - 1)
        if item.source is not _ABSENT:
            self._take_source(item.source, depth)
        for written in (item.tool_calls, item.input, item.name):  # templates write these as JSON
            if is_set(written):
                self.texts.append(memoryview(written))

    def _take_source(self, raw: msgspec.Raw, depth: int) -> None:
        source = _decoded(_TEXT_SOURCE, raw)
        for part in () if source is None else (source.data, source.content):
            if part is not _ABSENT:
                self.take(part, depth - 1)


def _decoded(decoder: msgspec.json.Decoder[_Read], raw: msgspec.Raw) -> _Read | None:
    """Decode a value; None if it does not match the decoder's type."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_number(beginning: memoryview) -> bool:
    return bytes(beginning).lstrip()[:1].isdigit()


def _measured(text: bytes, *, wants_sample: bool) -> tuple[int, bytes]:
    """Number of UTF-8 bytes that this inside of JSON strings stands for, and a sample of them."""
    if _ESCAPE not in text:
        return len(text), sample_of(text) if wants_sample else b""
    if len(text) <= _WHOLE_BYTES_MAX:
        meant = _unescaped(text)
        return len(meant), sample_of(meant) if wants_sample else b""
    windows = _windows(text, _COUNTED_WINDOW)
    meant_bytes = sum(len(_unescaped(window)) for window in windows)
    share = meant_bytes / sum(map(len, windows))
    parts = [_unescaped(window)[:_WINDOW] for window in _windows(text, _ESCAPED_WINDOW)]
    return round(share * len(text)), b"".join(parts)


def sample_of(text: bytes) -> bytes:
    """Sample of a text for the classifier."""
    if len(text) <= SAMPLE_BYTES:
        return text
    at = (len(text) - _WINDOW) // (2 * _WINDOWS)
    return b"".join(
        (
            text[at : at + _WINDOW],
            text[3 * at : 3 * at + _WINDOW],
            text[5 * at : 5 * at + _WINDOW],
            text[7 * at : 7 * at + _WINDOW],
        )
    )


def _starts(length: int, size: int) -> list[int]:
    """Starts of windows that are evenly spaced, away from beginning and end."""
    return [(2 * index + 1) * (length - size) // (2 * _WINDOWS) for index in range(_WINDOWS)]


def _windows(text: bytes, size: int) -> list[bytes]:
    """Windows of JSON text that is much longer than they are, cut at borders of characters and escapes."""
    return [text[_border(text, start) : _border(text, start + size)] for start in _starts(len(text), size)]


def _border(text: bytes, at: int) -> int:
    """Position shortly before `at`, or `at` itself, where a character or an escape begins. Where a client wrote a long
    run of backslashes, or bytes that are not UTF-8, it may be within one."""
    first = at - _CHARACTER_BYTES_MAX + 1
    while at > first and text[at] & 0xC0 == 0x80:
        at -= 1
    escape = text.rfind(_ESCAPE, at - _ESCAPE_LENGTH_MAX // 2, at)
    if escape < 0:
        return at
    behind = text[escape - _BACKSLASHES_MAX : escape]
    if (len(behind) - len(behind.rstrip(_ESCAPE))) % 2:
        return at  # an escaped backslash, which escapes nothing
    if text[escape - 6 : escape - 2].lower() in _HIGH_SURROGATES:
        escape -= 6
    return escape


def _unescaped(text: bytes) -> bytes:
    """Return the text that a JSON string's inside stands for, in UTF-8; the input itself if it is not valid."""
    try:
        return _STRING.decode(b'"%b"' % text).encode("utf-8", "replace")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text
