"""Extras: members that this gateway asks an engine to add to a stream, and their removal, so that the client gets the
same bytes as without them.

Both directions are defined here only. Whole answers are not affected: engines report their usage there unasked.

Members that an engine moves because of an extra are moved back: vLLM's `system_fingerprint` and llama.cpp's `timings`
stand in the last event of a stream, which becomes the one with the usage. Therefore the event that ends the choice is
held until the next one arrives. Verified against recordings of vLLM 0.32 and of llama.cpp, and against the source of
both; no stream of SGLang has been recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway.core.vocabulary import Extra
from gateway.request import engine_api
from gateway.request.bodies import is_set
from gateway.request.body_edits import BodyMember, BodySetting
from gateway.request.sse import events, fields

_PATHS = frozenset({engine_api.CHAT_PATH, engine_api.COMPLETIONS_PATH})
"""Calls that extras apply to; the others have usage in every stream and token ids in none."""
_ABSENT = msgspec.Raw()
_STREAM_OPTIONS = BodyMember("stream_options")
_TOKEN_IDS = BodyMember("return_token_ids")
_NAMES = (b'"stream_options"', b'"return_token_ids"', b'"n"', b"\\u00")
"""Members that matter here, and the start of an escape in a name. A body without any of them need not be read again."""
_FINISHES = re.compile(rb'"finish_reason": ?"')
"""Marker of a finish reason. No text matches, since quotes within a string have a backslash."""
_TELLS_USAGE = re.compile(rb'"usage": ?\{')
_IDS = re.compile(rb'("(?:prompt_)?token_ids": ?)\[[0-9, ]*\]')
_SEVERAL_PROMPTS = re.compile(rb"\[\s*[\[\"]")
"""Matches a list of prompts, even of one; a list of numbers is a single prompt."""
_LOOKED_BYTES = 64
_COMMENTS_BYTES_MAX = 4096
_MOVED = ("system_fingerprint", "timings")
"""Members that stand in the last event of a stream."""


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


def ask_for(wanted: Iterable[Extra], path: str, body: bytes) -> tuple[list[BodySetting], tuple[Extra, ...]]:
    """Return the settings of a stream's body that request the extras, and which of them: without those that the client
    asked for itself, or that this call does not have."""
    if path not in _PATHS:
        return [], ()
    is_plain = path == engine_api.CHAT_PATH and not any(name in body for name in _NAMES)
    asked = _NOTHING_ASKED if is_plain else _ASKED.decode(body)
    found = [(setting, extra) for extra in wanted if (setting := _setting(extra, asked)) is not None]
    return [setting for setting, _ in found], tuple(extra for _, extra in found)


def _setting(extra: Extra, asked: _Asked) -> BodySetting | None:
    if extra is Extra.TOKEN_IDS:
        is_named = asked.return_token_ids is not _ABSENT
        return None if is_set(asked.return_token_ids) else BodySetting(_TOKEN_IDS, b"true", is_named)
    is_named = asked.stream_options is not _ABSENT
    options = _options(asked.stream_options) if is_named else {}
    if options is None or _has_several_choices(asked):
        return None  # the engine refuses it; with several choices the last one to end is not known in advance
    if is_set(options.pop("include_usage", _ABSENT)):
        return None
    options.pop("continuous_usage_stats", None)  # meaningless without `include_usage`
    told = b"".join(b",%b:%b" % (msgspec.json.encode(name), bytes(raw)) for name, raw in options.items())
    return BodySetting(_STREAM_OPTIONS, b'{"include_usage":true%b}' % told, is_named)


def _has_several_choices(asked: _Asked) -> bool:
    if asked.n is not _ABSENT and bytes(asked.n) not in (b"1", b"null"):
        return True
    return _SEVERAL_PROMPTS.match(bytes(memoryview(asked.prompt)[:_LOOKED_BYTES])) is not None


def _options(raw: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """Decode stream options; None if they are not an object."""
    if not is_set(raw):
        return {}
    try:
        return _OPTIONS.decode(raw)
    except msgspec.DecodeError:
        return None


class Withheld:
    """Filter that removes the extras from one stream. It takes what an `EventScanner` releases, whole events and parts
    of oversized ones, and returns the client's bytes."""

    __slots__ = ("_behind", "_has_ids", "_has_usage", "_held", "_is_within")

    def __init__(self, extras: tuple[Extra, ...]) -> None:
        self._has_usage = Extra.USAGE in extras
        """True while the usage event is still to come."""
        self._has_ids = Extra.TOKEN_IDS in extras
        self._held = b""
        """Event that ends the choice, held because members of the next event may belong to it."""
        self._behind = b""
        """Comments after the held event."""
        self._is_within = False

    def feed(self, block: bytes, *, is_crossing: bool) -> bytes:
        """Filter a block. `is_crossing`: it ends inside an event too large to be held, or is a part of one."""
        was_within, self._is_within = self._is_within, is_crossing
        if is_crossing:
            return self._release() + block
        if was_within:
            rest = events(block)[0] if block else b""
            return rest + self._feed_whole(block[len(rest) :])
        return self._feed_whole(block)

    def _feed_whole(self, block: bytes) -> bytes:
        if self._has_ids and b"token_ids" in block:
            block = _IDS.sub(rb"\1null", block)
        if not self._has_usage or not (self._held or _FINISHES.search(block) or _TELLS_USAGE.search(block)):
            return block
        return b"".join([self._take(event) for event in events(block)])

    def close(self) -> bytes:
        """Return what is held, at the end of a stream or when it breaks."""
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
    """Decode an event; None for one without a finish reason or usage, or of another shape."""
    payload = fields(event)[1]
    if payload is None or not (_FINISHES.search(payload) or _TELLS_USAGE.search(payload)):
        return None
    try:
        return _EVENT.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_moved(held: bytes, told: _Event) -> bytes:
    """Return the held event with the members that it would have had as the last one."""
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
