"""Transcript of a streamed answer as sent to the client, kept so that another engine can resume the answer if it
breaks. It is stored nowhere else and given only to the engine that resumes.

While an answer passes, only references to its bytes are kept. They are parsed when the transcript is read, or once
there are many: text takes a fraction of the room of its events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

import msgspec

from gateway.request import engine_api
from gateway.request.answer_events import (
    CHUNKS,
    MESSAGE_EVENTS,
    NO_DELTA,
    RESPONSE_EVENTS,
    AnswerChoice,
    Chunk,
    ContentBlock,
    MessageEvent,
    ResponseEvent,
    Said,
)
from gateway.request.answers import TOKENS_MAX
from gateway.request.bodies import is_set
from gateway.request.kept_answer import Hold, NoRemainder

FOLD_BYTES = 64 * 1024
"""Bytes of events that are kept before they are parsed."""
_STEP_BYTES = 16 * 1024
_NUMBER_BYTES = 40
"""Memory of a number in a list."""
_WIDE_BYTES = 4
"""Memory of a character in text that is not ASCII: all characters take as much as the widest."""
_DONE = b"data: [DONE]"
_STRING = msgspec.json.Decoder(str)
_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*')
"""Text between the quotes of a JSON string."""
_IDS = b'"token_ids":['
"""Marker of events with token ids. In text every quote has a backslash, so no text contains it."""
_CREATED_MAX = 2**63 - 1
"""Latest time of creation that clients can read, who keep it in 64 bits."""
_OPENINGS_MAX = 4
"""Largest number of events at the beginning of a stream that differ from those that follow."""


class _Reader:
    """Parser of one API's stream documents, in order."""

    mark: ClassVar[bytes] = b""
    """Marker directly before the text in events with text; no other event contains it."""

    def __init__(self, tokens_max: int) -> None:
        """Set up the parser of an answer of at most `tokens_max` tokens."""
        self.said = Said()
        self._tokens_max = tokens_max
        self._unsaid = 0
        """Tokens without text yet, as they end within a character; the engine that resumes generates them again."""
        self._texts: list[str] = []
        self._size = 0

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the parsed answer."""
        said = self.said
        return self._size + _NUMBER_BYTES * (len(said.token_ids or ()) + len(said.prompt_token_ids or ()))

    def take(self, documents: bytes) -> None:
        """Parse a JSON array of documents. Raises NoRemainder."""
        raise NotImplementedError

    def take_alike(self, texts: list[bytes]) -> None:
        """Take the texts, as between their quotes, of events that equal a parsed one except for the text. Raises
        NoRemainder."""
        silent = next((number for number, text in enumerate(reversed(texts)) if text), len(texts))
        if silent < len(texts):
            self._count(len(texts) - silent, is_said=True)
        self._count(silent, is_said=False)
        self._add(_STRING.decode(b'"%b"' % b"".join(texts)))

    def finish(self) -> Said:
        said = self.said
        said.text = "".join(self._texts)
        said.tokens = min(said.tokens, self._tokens_max)
        self._texts = [said.text]
        if not said.text:
            raise NoRemainder("nothing of its text was sent")
        return said

    def _count(self, tokens: int, *, is_said: bool) -> None:
        """Count tokens. `is_said`: they have text, and the text of earlier tokens without any is complete with it."""
        self._unsaid += tokens
        if is_said:
            self.said.tokens += self._unsaid
            self._unsaid = 0

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._size += len(text) if text.isascii() else _WIDE_BYTES * len(text)


# Chat and completions


class _ChoicesReader(_Reader):
    """Parser of events with one choice."""

    mark = b'"content":"'

    def __init__(self, tokens_max: int) -> None:
        super().__init__(tokens_max)
        self.said.token_ids = []
        self._unsaid_ids: list[int] = []
        """Ids of tokens without text yet: a part of a character, or tokens that have no text."""

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + _NUMBER_BYTES * len(self._unsaid_ids)

    def take(self, documents: bytes) -> None:
        for chunk in CHUNKS.decode(documents):
            self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        said = self.said
        if not said.answer_id:
            said.answer_id, said.model = chunk.id, chunk.model
            said.created = int(chunk.created) if 0 <= chunk.created <= _CREATED_MAX else 0
        if chunk.prompt_token_ids:
            said.prompt_token_ids = chunk.prompt_token_ids
        for choice in chunk.choices:
            self._take_choice(choice)
        if chunk.usage is not None and not said.token_ids:  # ids count exactly
            self._take_count(chunk.usage.completion_tokens or 0)

    def _take_count(self, tokens: int) -> None:
        """Take the engine's own count of the tokens so far, unless it is impossible: each token with text has at least
        one byte of it, however many share an event, and none is beyond the limit."""
        if 0 < tokens <= min(self._tokens_max, self._size + self._unsaid):
            self.said.tokens = max(0, tokens - self._unsaid)

    def _take_choice(self, choice: AnswerChoice) -> None:
        delta = choice.delta or NO_DELTA
        if choice.index:
            raise NoRemainder("n: one of several answers")
        if choice.finish_reason is not None:
            raise NoRemainder("it had said why it ends")
        if is_set(choice.logprobs):
            raise NoRemainder("logprobs: a rest has none of what was said before")
        if is_set(delta.tool_calls) or is_set(delta.function_call) or is_set(delta.audio) or delta.refusal:
            raise NoRemainder("tools: a call that was begun")
        if delta.reasoning or delta.reasoning_content:
            raise NoRemainder("reasoning: a text that is continued has none")
        if choice.prompt_token_ids:
            self.said.prompt_token_ids = choice.prompt_token_ids
        text = delta.content if choice.delta is not None else choice.text
        if text or (text is not None and delta.role is None):
            self._take_text(text, choice.token_ids)

    def _take_text(self, text: str, ids: list[int] | None) -> None:
        said = self.said
        self._count(len(ids) if ids else 1, is_said=bool(text))
        if text:
            self._add(text)
        if ids is None:
            said.token_ids = None
        elif said.token_ids is not None:
            self._unsaid_ids += ids
            if text:
                said.token_ids += self._unsaid_ids
                self._unsaid_ids = []


class _CompletionReader(_ChoicesReader):
    mark = b'"text":"'


# Messages


class _MessagesReader(_Reader):
    mark = b'"type":"text_delta","text":"'

    def __init__(self, tokens_max: int) -> None:
        super().__init__(tokens_max)
        self._blocks = 0

    def take(self, documents: bytes) -> None:
        for event in MESSAGE_EVENTS.decode(documents):
            self._take(event)

    def _take(self, event: MessageEvent) -> None:
        match event.type:
            case "message_start" if event.message is not None:
                self.said.answer_id, self.said.model = event.message.id, event.message.model
            case "content_block_start" if event.content_block is not None:
                self._begin(event.content_block, event.index)
            case "content_block_delta" if event.delta is not None and event.delta.type == "text_delta":
                self._count(1, is_said=bool(event.delta.text))
                self._add(event.delta.text or "")
            case "ping":
                pass
            case "content_block_stop" | "message_delta" | "message_stop":
                raise NoRemainder("it had said that it ends")
            case _:
                raise NoRemainder("a block that is no text")

    def _begin(self, block: ContentBlock, index: int) -> None:
        self._blocks += 1
        if block.type != "text" or self._blocks > 1:
            raise NoRemainder("a block that is no text, or not the only one")
        self.said.index = index
        self._add(block.text or "")


# Responses


class _ResponsesReader(_Reader):
    def take(self, documents: bytes) -> None:
        for event in RESPONSE_EVENTS.decode(documents):
            self._take(event)
            self.said.next_number = event.sequence_number + 1

    def _take(self, event: ResponseEvent) -> None:
        said = self.said
        match event.type:
            case "response.created" if event.response is not None:
                said.response = event.response
                self._size += len(msgspec.json.encode(event.response))  # may repeat the prompt
                said.answer_id = str(event.response.get("id", ""))
            case "response.in_progress" | "response.queued":
                pass
            case "response.output_item.added" if event.item is not None:
                if said.item or event.item.get("type") != "message":
                    raise NoRemainder("an item that is no message, or not the only one")
                said.item, said.output_index = event.item, event.output_index
            case "response.content_part.added" if event.part is not None:
                if said.part or event.part.get("type") != "output_text":
                    raise NoRemainder("a part that is no text, or not the only one")
                said.part, said.content_index = event.part, event.content_index
            case "response.output_text.delta" if event.delta is not None and not event.logprobs:
                self._count(1, is_said=bool(event.delta))
                self._add(event.delta)
            case _:
                raise NoRemainder("it had said that it ends, or something that is no text")

    def finish(self) -> Said:
        if not (self.said.response and self.said.item and self.said.part):
            raise NoRemainder("it was not announced in full")
        return super().finish()


_READERS: dict[str, type[_Reader]] = {
    engine_api.CHAT_PATH: _ChoicesReader,
    engine_api.COMPLETIONS_PATH: _CompletionReader,
    engine_api.MESSAGES_PATH: _MessagesReader,
    engine_api.RESPONSES_PATH: _ResponsesReader,
}
PATHS = frozenset(_READERS)
"""Calls whose answers can be resumed."""


class Transcript:
    """Transcript of one answer. All that goes to the client passes through it, in whole events."""

    __slots__ = ("_blocks", "_fold_at", "_held", "_hold", "_limit", "_put", "_reader", "_size", "is_dropped", "why_not")

    def __init__(
        self, path: str, hold: Hold, put: Callable[[bytes], bool], *, output_tokens_max: int | None = None
    ) -> None:
        """Set up the transcript. `put` sends on what passes, as `Sink.put` does. `output_tokens_max`: the request's own
        limit."""
        self.why_not = ""
        """Reason why the transcript was given up; empty while it is kept."""
        self.is_dropped = False
        """True if the transcript was dropped because its room was exhausted."""
        self._reader = _READERS[path](TOKENS_MAX if output_tokens_max is None else output_tokens_max)
        self._hold = hold
        self._put = put
        self._blocks: list[bytes] = []
        self._size = 0
        self._held = 0
        self._limit = 0
        self._fold_at = FOLD_BYTES

    def put(self, block: bytes) -> bool:
        self._blocks.append(block)
        self._size += len(block)
        if self._size > self._limit:
            self._look()
        return self._put(block)

    def keep(self, block: bytes) -> None:
        """Keep a block that is not sent from here: the client gets it without the members it did not ask for."""
        self._blocks.append(block)
        self._size += len(block)
        if self._size > self._limit:
            self._look()

    def said(self) -> Said:
        """Return the parsed transcript. Raises NoRemainder."""
        if self.why_not:
            raise NoRemainder(self.why_not)
        try:
            self._fold()
        except NoRemainder as why:  # the leg may go on, and what follows is not the whole
            self._lose(str(why))
            raise
        said = self._reader.finish()
        return msgspec.structs.replace(said, token_ids=None if said.token_ids is None else list(said.token_ids))

    def _look(self) -> None:
        """Parse the kept events if there are many, and reserve room for them."""
        if self.why_not:
            self._blocks.clear()
            self._size = 0
            return
        if self._size >= self._fold_at:
            try:
                self._fold()
            except NoRemainder as why:
                self._lose(str(why))
                return
        missing = self._size - self._held
        if missing > 0:
            more = -(-missing // _STEP_BYTES) * _STEP_BYTES
            if not self._hold(more):
                self.is_dropped = True
                self._lose("there was no room to keep what was said")
                return
            self._held += more
        self._limit = min(self._held, self._fold_at)

    def _lose(self, why: str) -> None:
        self.why_not = why
        self._blocks.clear()
        self._hold(-self._held)
        self._held = self._size = self._limit = 0

    def _fold(self) -> None:
        """Parse the kept events and drop them. Raises NoRemainder."""
        blocks, self._blocks = self._blocks, []
        told, alike = _alike(b"".join(blocks), self._reader.mark)
        lines = told.split(b"\n")
        payloads = [line[5:] for line in lines if line.startswith(b"data:") and not line.startswith(_DONE)]
        try:
            self._reader.take(b"[%b]" % b",".join(payloads))
            if alike:
                self._reader.take_alike(alike)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoRemainder("its events are none that are known") from error
        self._size = self._reader.held_bytes
        self._fold_at = self._size + FOLD_BYTES


def _alike(told: bytes, mark: bytes) -> tuple[bytes, list[bytes]]:
    """Split off runs of events that differ in nothing but the text. Return the beginning up to the first of them and
    the texts of all the others; no texts if one is of another kind, or if they have token ids.
    The result equals parsing them one by one, in a tenth of the time."""
    start = 0
    for _ in range(_OPENINGS_MAX if mark else 0):
        end = told.find(b"\n\n", start) + 2
        event = told[start:end]
        at = event.find(mark) + len(mark)
        if end < start + 2 or end == len(told):
            break
        text = _TEXT.match(event, at) if event.count(mark) == 1 and _IDS not in event else None
        if text is not None and told.startswith(before := event[:at], end):
            after = event[text.end() : -2]
            others = told[end:].split(b"\n\n")
            first, last = len(before), -len(after)
            texts = [other[first:last] for other in others if other.startswith(before) and other.endswith(after)]
            is_alike = len(texts) == len(others) - 1 and not others[-1]
            return (told[:end], texts) if is_alike and _TEXT.fullmatch(b"".join(texts)) else (told, [])
        start = end
    return told, []
