"""Finds the media parts of a prompt (images, audio, video, files) and estimates their tokens.

A media part counts by tokens wherever a prompt's size counts, however long its data: as declared for the model, else as
learnt from the usage that engines report, else as the config assumes; all parts of one prompt count for no more than
the model's context. In the text that is hashed a part is replaced by a hash of itself, repeated to four bytes a token,
so that prompts with different images have different prefixes. A request without media parts costs one search of its
body. Nothing of a part is kept, and no request fails because of anything found here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import log2
from typing import Final, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from xxhash import xxh3_64_digest

from gateway.core.vocabulary import ModelName, Word
from gateway.request.bodies import Body
from gateway.request.body_edits import address_of

TOKEN_BYTES: Final = 4
"""Bytes of a prompt that stand for one token."""
TOKENS_MAX: Final = 100_000
"""Bound on the learnt tokens of one part, since engines may report absurd usage."""
_ABSENT: Final = msgspec.Raw()
_DEPTH_MAX: Final = 8
"""Levels of nesting: messages, a message, its parts, one part, a tool's result, a document inside it."""
_BRACES_MAX: Final = 64 * 1024
"""Bound on the braces of a prompt that is parsed, and on the commas of a list of strings: more of them would hold up
the event loop."""
_SAMPLES_MAX: Final = 16
"""Requests in a learnt average; later ones replace earlier ones."""
_SURE: Final = 4
_FAR: Final = 4
"""Factor by which one request may differ from an average of at least `_SURE` requests; beyond it the value is cut."""
_STEPS_AN_OCTAVE: Final = 4
"""Steps to which a learnt value is rounded. It changes only when the average is more than a step off, because each
change makes the prefixes behind a media part look new, and gateways should mostly agree."""
_LEARNT_MAX: Final = 4096


class MediaKind(Word):
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


_KINDS: Final = {
    b"image_url": MediaKind.IMAGE,
    b"image": MediaKind.IMAGE,
    b"image_embeds": MediaKind.IMAGE,
    b"image_generation_call": MediaKind.IMAGE,
    b"input_image": MediaKind.IMAGE,
    b"computer_screenshot": MediaKind.IMAGE,
    b"input_audio": MediaKind.AUDIO,
    b"audio": MediaKind.AUDIO,
    b"audio_url": MediaKind.AUDIO,
    b"audio_embeds": MediaKind.AUDIO,
    b"input_video": MediaKind.VIDEO,
    b"video": MediaKind.VIDEO,
    b"video_url": MediaKind.VIDEO,
    b"file": MediaKind.FILE,
    b"input_file": MediaKind.FILE,
    b"document": MediaKind.FILE,
}
"""Kinds by the type of a part in the APIs of OpenAI, vLLM and Anthropic."""
_KINDS_IN_JSON: Final = {b'"%b"' % name: kind for name, kind in _KINDS.items()}
_KINDS_OF_DATA: Final = {b"image": MediaKind.IMAGE, b"audio": MediaKind.AUDIO, b"video": MediaKind.VIDEO}
_NAMED: Final = re.compile(
    rb'"(?:i(?:mage(?:_(?:url|embeds|generation_call))?|nput_(?:image|audio|video|file))"|audio(?:_url|_embeds)?"'
    rb'|video(?:_url)?"|file"|computer_screenshot"|d(?:ocument"|ata:(?:image|audio|video)/))'
)
"""Matches one of those types or the beginning of a data URL. The pattern begins with a quote, so the search jumps over
base64 data. Quotes inside JSON strings are escaped, so a match is nearly always a part or a field of that name."""
_SEARCHED_MAX: Final = 64 * 1024
"""Bytes up to which a text is searched; a longer one is parsed, which is faster where it is full of quotes."""
_DATA: Final = re.compile(rb'"data:(image|audio|video)/[^,"]{0,64};base64,')
_OBJECT: Final = 0x7B
_OPENINGS: Final = b"{["
_STAND_INS_BYTES_MAX: Final = 8 * 2**20
"""Bytes of all stand-ins of one prompt, two million tokens; the parts beyond them count in full, but stand in the text
with their hash alone."""
_DIGEST_BYTES: Final = 8
_TEXT_SOURCES: Final = (b'"text"', b'"content"')
_Read = TypeVar("_Read")


class MediaMembers(msgspec.Struct, gc=False):
    """Members by which a part of a message is known as a media part."""

    type: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT
    image_url: msgspec.Raw = _ABSENT
    audio_url: msgspec.Raw = _ABSENT
    video_url: msgspec.Raw = _ABSENT


class _Part(MediaMembers, gc=False):
    """Message, part of a message, or document of a reranking call."""

    content: msgspec.Raw = _ABSENT
    output: msgspec.Raw = _ABSENT


_PART: Final = msgspec.json.Decoder(_Part)
_PARTS: Final = msgspec.json.Decoder(list[_Part])
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Media(Struct, frozen=True):
    """The media parts of one prompt, and the prompt without them."""

    pieces: tuple[bytes | memoryview, ...]
    """Text that is hashed, with a stand-in for each part; stand-ins are cut where all of them would be too long."""
    prompt_bytes: int
    """Bytes of text, and four for each token of the parts."""
    sent_bytes: int
    """Bytes of the prompt in the body."""
    counts: tuple[tuple[MediaKind, int], ...]
    """Number of parts of each kind."""
    text_bytes: int


class DeclaredTokens(Protocol):
    """Tokens of one media part of each kind, as declared for one model."""

    def tokens_of(self, kind: str, /) -> int | None:
        """Tokens of one part; None: not declared."""


class MediaSettings(Protocol):
    """Tokens of media parts: assumed of all models, and declared for some."""

    @property
    def models(self) -> Mapping[str, DeclaredTokens]: ...

    def tokens_of(self, kind: str, /) -> int:
        """Tokens assumed of one part."""


class MediaTokens:
    """Tokens of one part by model and kind: declared, learnt or assumed."""

    def __init__(
        self,
        settings: Callable[[], MediaSettings],
        context_max: Callable[[ModelName], int] = lambda _: 0,
    ) -> None:
        """`settings` gives the assumed and the declared tokens. `context_max` gives the context of a model in tokens; 0
        where it is unknown. Both are read anew for each request, since they change at run time."""
        self._settings = settings
        self._context_max = context_max
        self._learnt: dict[tuple[ModelName, MediaKind], _Learnt] = {}

    def of(self, model: ModelName, kind: MediaKind) -> int:
        settings = self._settings()
        declared = settings.models.get(model)
        tokens = None if declared is None else declared.tokens_of(kind)
        if tokens is None:
            learnt = self._learnt.get((model, kind))
            tokens = settings.tokens_of(kind) if learnt is None else learnt.used
        return tokens

    def assumed_max(self, model: ModelName) -> int | None:
        """Bound on the media tokens of an estimate that may refuse a request: half the model's context, the share by
        which an estimate may exceed it (`too_long_slack_share`). None where the context is unknown."""
        return self._context_max(model) // 2 or None

    def bounded(self, model: ModelName, tokens: list[int]) -> list[int]:
        """Tokens of each part of one prompt, scaled so that their sum is at most the model's context."""
        total, most = sum(tokens), self._context_max(model)
        return [max(1, each * most // total) for each in tokens] if 0 < most < total else tokens

    def learn(self, model: ModelName, media: Media, prompt_tokens: int | None) -> None:
        """Learn from the usage of one request. Only prompts with parts of one kind and little text count, since the
        tokens of the text are a guess."""
        if prompt_tokens is None or len(media.counts) != 1:
            return
        ((kind, count),) = media.counts
        text_tokens = media.text_bytes // TOKEN_BYTES
        if not 0 < 2 * text_tokens <= prompt_tokens:
            return
        learnt = self._learnt.pop((model, kind), None) or _Learnt()
        learnt.add((prompt_tokens - text_tokens) / count)
        if len(self._learnt) >= _LEARNT_MAX:
            del self._learnt[next(iter(self._learnt))]
        self._learnt[model, kind] = learnt


class _Learnt:
    """Learnt tokens of one kind of part for one model."""

    __slots__ = ("_count", "_mean", "used")

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self.used = 0

    def add(self, tokens: float) -> None:
        tokens = min(max(tokens, 1.0), float(TOKENS_MAX))
        if self._count >= _SURE:
            tokens = min(max(tokens, self._mean / _FAR), self._mean * _FAR)
        self._count = min(self._count + 1, _SAMPLES_MAX)
        self._mean += (tokens - self._mean) / self._count
        if not self.used or abs(log2(self._mean / self.used)) * _STEPS_AN_OCTAVE > 1:
            self.used = round(2 ** (round(log2(self._mean) * _STEPS_AN_OCTAVE) / _STEPS_AN_OCTAVE))


def media_in(
    body: Body, raw: bytes, model: ModelName, tokens: MediaTokens, *, stand_ins_bytes_max: int = _STAND_INS_BYTES_MAX
) -> Media | None:
    """Media parts of a body; None: none were found. `stand_ins_bytes_max` bounds the bytes of all stand-ins."""
    if not _may_name_one(raw):
        return None
    views = body.prompt_parts()
    found = [_spans_in(view) for view in views]
    each = [tokens.of(model, kind) for spans in found for _, _, kind in spans]
    if not each:
        return None
    left = iter(tokens.bounded(model, each))
    room = stand_ins_bytes_max
    pieces: list[bytes | memoryview] = []
    counts: dict[MediaKind, int] = {}
    text_bytes = prompt_bytes = 0
    for view, spans in zip(views, found, strict=True):
        begins = 0
        for start, end, kind in spans:
            size = TOKEN_BYTES * next(left)
            stand_in = _stand_in(view[start:end], min(size, max(room, _DIGEST_BYTES)))
            pieces += view[begins:start], stand_in
            room -= len(stand_in)
            text_bytes += start - begins
            prompt_bytes += size
            counts[kind] = counts.get(kind, 0) + 1
            begins = end
        pieces.append(view[begins:])
        text_bytes += len(view) - begins
    sent_bytes = sum(map(len, views))
    return Media(tuple(pieces), prompt_bytes + text_bytes, sent_bytes, tuple(counts.items()), text_bytes)


def kind_of_data(text: memoryview) -> MediaKind | None:
    """Kind of a string in JSON that is a data URL; None for any other string."""
    told = _DATA.match(text)
    return None if told is None else _KINDS_OF_DATA[told[1]]


def _stand_in(part: memoryview, size: int) -> bytes:
    digest = xxh3_64_digest(part)
    return (digest * (size // len(digest) + 1))[:size]


_Span = tuple[int, int, MediaKind]


def _may_name_one(text: bytes | memoryview) -> bool:
    return len(text) > _SEARCHED_MAX or _NAMED.search(text) is not None


def _spans_in(view: memoryview) -> list[_Span]:
    """Begin, end and kind of each media part, in order."""
    spans: list[_Span] = []
    if view[0] in _OPENINGS and _count(view, b"{") <= _BRACES_MAX:
        _look(view, address_of(view), _DEPTH_MAX, spans)
    return sorted(spans)


def _look(view: memoryview, base: int, depth: int, spans: list[_Span]) -> None:
    """Collect the media parts below a value. `base` is the address of the prompt, which the value is a part of."""
    if not depth or view[0] not in _OPENINGS or not _may_name_one(view):
        return
    if view[0] == _OBJECT:
        part = _decoded(_PART, view)
        kind = None if part is None else kind_of(part)
        if kind is not None:
            spans.append(_span(view, base, kind))
        elif part is not None:
            _look_within(part, base, depth, spans)
        return
    parts = _decoded(_PARTS, view)
    if parts is None:
        _look_at_each(view, base, depth, spans)
        return
    kinds = list(map(kind_of, parts))
    raws = _decoded(_RAWS, view) if any(kinds) else None
    for index, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        if kind is None:
            _look_within(part, base, depth, spans)
        elif raws is not None:
            spans.append(_span(memoryview(raws[index]), base, kind))


def _look_within(part: _Part, base: int, depth: int, spans: list[_Span]) -> None:
    for inner in (part.content, part.output, part.source):
        if inner is not _ABSENT:
            _look(memoryview(inner), base, depth - 1, spans)


def _look_at_each(view: memoryview, base: int, depth: int, spans: list[_Span]) -> None:
    """Collect the media parts of a list that holds strings, too."""
    if _count(view, b",") > _BRACES_MAX:
        return
    for each in _decoded(_RAWS, view) or ():
        item = memoryview(each)
        kind = kind_of_data(item)
        if kind is None and item[0] == _OBJECT:
            part = _decoded(_PART, item)
            kind = None if part is None else kind_of(part)
            if kind is None and part is not None:
                _look_within(part, base, depth - 1, spans)
        if kind is not None:
            spans.append(_span(item, base, kind))


def _span(part: memoryview, base: int, kind: MediaKind) -> _Span:
    start = address_of(part) - base
    return start, start + len(part), kind


def kind_of(part: MediaMembers) -> MediaKind | None:
    """Kind of a media part; None for text and messages."""
    kind = _KINDS_IN_JSON.get(bytes(part.type))
    if kind is None:
        if part.type is not _ABSENT:
            return None
        named = (part.image_url, MediaKind.IMAGE), (part.audio_url, MediaKind.AUDIO), (part.video_url, MediaKind.VIDEO)
        return next((kind for member, kind in named if member is not _ABSENT), None)
    if part.source is not _ABSENT and kind is MediaKind.FILE:
        source = _decoded(_PART, memoryview(part.source))
        if source is not None and bytes(source.type) in _TEXT_SOURCES:
            return None
    return kind


def _decoded(decoder: msgspec.json.Decoder[_Read], view: memoryview) -> _Read | None:
    """Decoded value; None where the JSON has another shape."""
    try:
        return decoder.decode(view)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _count(view: memoryview, sign: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(view, np.uint8) == sign[0]))
