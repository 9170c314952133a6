"""What an engine is asked to tell for us, and how it is taken out again: the client gets the bytes that it would have
got had nobody asked.

The one place that knows both sides of it. Whole answers are none of its business: there engines tell their usage
unasked.

What an engine puts elsewhere because it was asked is put back: vLLM's `system_fingerprint` and llama.cpp's `timings`
stand in the last event of a stream, which is the one with the usage. So the event that ends the choice is held until
the next one is here. Verified against recordings of vLLM 0.32 and of llama.cpp, and against the source of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway.core.vocabulary import Extra
from gateway.request import engine_api
from gateway.request.bodies import is_set
from gateway.request.body_edits import Member, Setting
from gateway.request.sse import events, fields

_PATHS = frozenset({engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH})
"""The other calls have their usage in every stream, and no token ids in any."""
_ABSENT = msgspec.Raw()
_STREAM_OPTIONS = Member("stream_options")
_TOKEN_IDS = Member("return_token_ids")
_NAMES = (b'"stream_options"', b'"return_token_ids"', b'"n"', b"\\u00")
"""Of members that matter here, or a name written with an escape. Without any of them a body need not be read again."""
_FINISHES = re.compile(rb'"finish_reason": ?"')
"""No text looks like it: within a string quotes have a backslash."""
_TELLS_USAGE = re.compile(rb'"usage": ?\{')
_IDS = re.compile(rb'("(?:prompt_)?token_ids": ?)\[[0-9, ]*\]')
_SEVERAL_PROMPTS = re.compile(rb"\[\s*[\[\"]")
"""A list of them, if only of one: a list of numbers is a single one."""
_LOOKED_BYTES = 64
_COMMENTS_BYTES_MAX = 4096
_MOVED = ("system_fingerprint", "timings")
"""Members that stand in a stream's last event, whichever that is."""


class _Asked(msgspec.Struct):
    prompt: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT
    return_token_ids: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct):
    finish_reason: msgspec.Raw = _ABSENT


class _Event(msgspec.Struct):
    choices: list[_Choice]
    usage: msgspec.Raw = _ABSENT
    system_fingerprint: msgspec.Raw = _ABSENT
    timings: msgspec.Raw = _ABSENT


_ASKED = msgspec.json.Decoder(_Asked)
_NOTHING_ASKED = _Asked()
_EVENT = msgspec.json.Decoder(_Event)
_OPTIONS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def ask_for(wanted: Iterable[Extra], path: str, body: bytes) -> tuple[list[Setting], tuple[Extra, ...]]:
    """How the body of a stream has to be set to have these told, and which of them: not those that the client is to
    have itself, or that this call has not."""
    if path not in _PATHS:
        return [], ()
    is_plain = path == engine_api.CHAT_PATH and not any(name in body for name in _NAMES)
    asked = _NOTHING_ASKED if is_plain else _ASKED.decode(body)
    found = [(setting, extra) for extra in wanted if (setting := _setting(extra, asked)) is not None]
    return [setting for setting, _ in found], tuple(extra for _, extra in found)


def _setting(extra: Extra, asked: _Asked) -> Setting | None:
    if extra is Extra.TOKEN_IDS:
        is_named = asked.return_token_ids is not _ABSENT
        return None if is_set(asked.return_token_ids) else Setting(_TOKEN_IDS, b"true", is_named)
    is_named = asked.stream_options is not _ABSENT
    options = _options(asked.stream_options) if is_named else {}
    if options is None or _has_several_choices(asked):
        return None  # for the engine to refuse; which of several choices ends last is not known before it has
    if is_set(options.pop("include_usage", _ABSENT)):
        return None
    options.pop("continuous_usage_stats", None)  # it means nothing without the other
    told = b"".join(b",%b:%b" % (msgspec.json.encode(name), bytes(raw)) for name, raw in options.items())
    return Setting(_STREAM_OPTIONS, b'{"include_usage":true%b}' % told, is_named)


def _has_several_choices(asked: _Asked) -> bool:
    if asked.n is not _ABSENT and bytes(asked.n) not in (b"1", b"null"):
        return True
    return _SEVERAL_PROMPTS.match(bytes(memoryview(asked.prompt)[:_LOOKED_BYTES])) is not None


def _options(raw: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """None where they are no object."""
    if not is_set(raw):
        return {}
    try:
        return _OPTIONS.decode(raw)
    except msgspec.DecodeError:
        return None


class Withheld:
    """Takes out of one stream what was asked for by us. Feed it whole events, and what is passed on of one too large to
    be held, as an `EventScanner` releases them; what it returns is the client's."""

    __slots__ = ("_behind", "_has_ids", "_has_usage", "_held", "_is_within")

    def __init__(self, extras: tuple[Extra, ...]) -> None:
        self._has_usage = Extra.USAGE in extras
        """Still to come."""
        self._has_ids = Extra.TOKEN_IDS in extras
        self._held = b""
        """The event that ends the choice: something of the next one may belong to it."""
        self._behind = b""
        """Comments behind that."""
        self._is_within = False

    def feed(self, block: bytes, *, is_crossing: bool) -> bytes:
        """`is_crossing`: it ends inside an event too large to be held, or is a part of one."""
        was_within, self._is_within = self._is_within, is_crossing
        if is_crossing:
            return self._release() + block
        if was_within:
            rest = next(events(block), b"")
            return rest + self._feed_whole(block[len(rest) :])
        return self._feed_whole(block)

    def _feed_whole(self, block: bytes) -> bytes:
        if self._has_ids and b"token_ids" in block:
            block = _IDS.sub(rb"\1null", block)
        if not self._has_usage or not (self._held or _FINISHES.search(block) or _TELLS_USAGE.search(block)):
            return block
        return b"".join([self._take(event) for event in events(block)])

    def close(self) -> bytes:
        """The stream is over, well or not."""
        return self._release()

    def _take(self, event: bytes) -> bytes:
        if not self._has_usage:
            return event
        if self._held and event.startswith(b":") and len(self._behind) < _COMMENTS_BYTES_MAX:
            self._behind += event
            return b""
        told = _told(event)
        if told is None:
            return self._release() + event
        if not told.choices and is_set(told.usage):
            self._has_usage = False
            self._held = _with_moved(self._held, told)
            return self._release()
        if any(is_set(choice.finish_reason) for choice in told.choices):
            before = self._release()
            self._held = event
            return before
        return self._release() + event

    def _release(self) -> bytes:
        held, self._held, self._behind = self._held + self._behind, b"", b""
        return held


def _told(event: bytes) -> _Event | None:
    """None for what is no event of these calls."""
    payload = fields(event)[1]
    if payload is None or not (_FINISHES.search(payload) or _TELLS_USAGE.search(payload)):
        return None
    try:
        return _EVENT.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_moved(held: bytes, told: _Event) -> bytes:
    """With what would have stood in the event that was held, had it been the last one."""
    last = _told(held) if held else None
    if last is None:
        return held
    moved = [
        b',"%b":%b' % (name.encode(), bytes(raw))
        for name in _MOVED
        if (raw := getattr(told, name)) is not _ABSENT and getattr(last, name) is _ABSENT
    ]
    end = held.rindex(b"}")
    return b"".join((held[:end], *moved, held[end:]))
