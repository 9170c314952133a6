"""Documents of engines' event streams, as far as they are read, and what they add up to.

This module is never compiled. Decoders read a class's annotations, which mypyc simplifies; and it compares values of a
compiled class that gets its `__eq__` from a decorator by their identity.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

ABSENT = msgspec.Raw()


class PlainChoice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class PlainEvent(msgspec.Struct):
    """Event of a chat or completion that generates; any other member that matters is absent."""

    object: Literal["chat.completion.chunk", "text_completion"]
    choices: list[PlainChoice]
    error: msgspec.Raw = ABSENT
    type: msgspec.Raw = ABSENT


PLAIN = msgspec.json.Decoder(PlainEvent)


class Said(msgspec.Struct):
    """State of an answer so far, as the client knows it."""

    text: str = ""
    tokens: int = 0
    """Output tokens as far as reported or countable; events with content count as tokens."""
    token_ids: list[int] | None = None
    """Ids of all of the text's tokens; None if the engine did not report all."""
    prompt_token_ids: list[int] | None = None
    answer_id: str = ""
    created: int = 0
    model: str = ""
    index: int = 0
    """Index of the block being written (messages API)."""
    response: dict[str, object] = {}
    """Response object with which the answer was announced (responses API)."""
    item: dict[str, object] = {}
    part: dict[str, object] = {}
    output_index: int = 0
    content_index: int = 0
    next_number: int = 0
    """Sequence number of the next event (responses API)."""


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = ABSENT
    function_call: msgspec.Raw = ABSENT
    audio: msgspec.Raw = ABSENT


NO_DELTA = Delta()


class AnswerChoice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = ABSENT
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Counts(msgspec.Struct):
    completion_tokens: int | None = None


class Chunk(msgspec.Struct):
    id: str = ""
    created: int | float = 0
    model: str = ""
    choices: list[AnswerChoice] = []
    usage: Counts | None = None
    prompt_token_ids: list[int] | None = None


class OpeningUsage(msgspec.Struct):
    input_tokens: int | None = None


class OpenedMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: OpeningUsage | None = None


class ContentBlock(msgspec.Struct):
    type: str = ""
    text: str | None = None


class MessageEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: OpenedMessage | None = None
    content_block: ContentBlock | None = None
    delta: ContentBlock | None = None


class ResponseEvent(msgspec.Struct):
    type: str = ""
    sequence_number: int = -1
    response: dict[str, object] | None = None
    item: dict[str, object] | None = None
    part: dict[str, object] | None = None
    output_index: int = 0
    content_index: int = 0
    delta: str | None = None
    logprobs: list[object] | None = None


CHUNKS = msgspec.json.Decoder(list[Chunk])
MESSAGE_EVENTS = msgspec.json.Decoder(list[MessageEvent])
RESPONSE_EVENTS = msgspec.json.Decoder(list[ResponseEvent])


class TokenUsage(Struct, frozen=True):
    """Token counts that the engine reported; None where one is missing or implausible."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
