"""Sends one request to an OpenAI-compatible endpoint and reads its streamed answer event by event.

Only what is measured is read. It must never mend what it measures: it does not retry, and an incomplete answer is a
failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import aiohttp
import msgspec

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.vocabulary import ApiKind
from loadgen.workload import Message

REGION_HEADER = "x-nightside-region"
SESSION_HEADER = "x-session-id"
_DONE = b"[DONE]"
_EVENT_BYTES_MAX = 2**20
_ERROR_TEXT_MAX = 200


class AnswerFailure(Exception):
    """The request failed; the message is text for the report."""


@dataclass(frozen=True, slots=True)
class EndpointDialect:
    """Request format that an endpoint expects."""

    model: ModelName
    api: ApiKind = ApiKind.CHAT
    include_usage: bool = True
    """Ask for token counts at the end of the stream; an endpoint without that option may refuse the request."""
    ignore_eos: bool = False
    """Ask for exactly the workload's number of tokens, not fewer: an extension of vLLM and SGLang."""

    def body(self, messages: Sequence[Message], output_tokens: int) -> bytes:
        document: dict[str, object] = {"model": self.model, "max_tokens": output_tokens, "stream": True}
        if self.api is ApiKind.CHAT:
            document["messages"] = messages
        else:
            document["prompt"] = "\n".join(message["content"] for message in messages)
        if self.include_usage:
            document["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            document["ignore_eos"] = True
        return msgspec.json.encode(document)


# Parts of an answer that are read; all others are skipped.


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Reasoning counts as text under either of its names, but is not part of the answer's content."""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: str | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts reported by the endpoint."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None

    @property
    def cached_tokens(self) -> int | None:
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class PartialAnswer:
    """State of one answer as far as it has arrived."""

    served_by: RegionName | None = None
    sent_to: str = ""
    """Address that the request was sent to; empty if it was not sent, and in a session without AddressedRequest."""
    text: list[str] = field(default_factory=list)
    """Content of the answer, in pieces as they arrived."""
    text_events: int = 0
    """Events that held text, reasoning included."""
    usage: Usage = field(default_factory=Usage)

    @property
    def output_tokens(self) -> int:
        """Output tokens counted by the endpoint, or the number of text events where it reports no count."""
        return self.text_events if self.usage.completion_tokens is None else self.usage.completion_tokens


_asked_for: ContextVar[PartialAnswer] = ContextVar("asked_for")


class AddressedRequest(aiohttp.ClientRequest):
    """Request of a session that notes the address which it is sent to, as no failure of aiohttp names it."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        if conn.transport is not None:
            _asked_for.get().sent_to = str(conn.transport.get_extra_info("peername")[0])
        return await super().send(conn)


async def exchange(
    session: aiohttp.ClientSession,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    answer: PartialAnswer,
    on_text: Callable[[], None],
) -> None:
    """Send one request and read its whole answer into `answer`; `on_text` is called after each event that held text.

    Raises AnswerFailure, and aiohttp's errors for failed connections.
    """
    _asked_for.set(answer)
    async with session.post(
        url, data=body, headers={"Content-Type": "application/json"} | dict(headers), allow_redirects=False
    ) as response:
        if response.status != 200:
            raise AnswerFailure(await _refusal(response))
        served_by = response.headers.get(REGION_HEADER)
        answer.served_by = RegionName(served_by) if served_by else None
        data = b""
        async for data in _events(response.content):
            if data != _DONE and _took_text(answer, data):
                answer.text_events += 1
                on_text()
    if data != _DONE:
        raise AnswerFailure("the stream ended without [DONE]")
    if not answer.text_events:
        raise AnswerFailure("the answer held no token")


def _took_text(answer: PartialAnswer, data: bytes) -> bool:
    try:
        chunk = _decode(data)
    except msgspec.MsgspecError as error:
        raise AnswerFailure(f"an event that is no chunk: {error}") from error
    if chunk.error is not None:
        raise AnswerFailure(f"error event: {_shortened(msgspec.json.encode(chunk.error).decode())}")
    answer.usage = chunk.usage or answer.usage
    text = "".join(choice.delta.content or choice.text or "" for choice in chunk.choices)
    if text:
        answer.text.append(text)
    return bool(text) or any(choice.delta.reasoning_content or choice.delta.reasoning for choice in chunk.choices)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(_EVENT_BYTES_MAX)).decode(errors="replace")
    return f"HTTP {response.status}: {_shortened(text)}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ERROR_TEXT_MAX else text[: _ERROR_TEXT_MAX - 1] + "…"


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Payloads of the `data:` lines, one per event, as the chat API sends them."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        if len(rest) > _EVENT_BYTES_MAX:
            raise AnswerFailure(f"an event longer than {_EVENT_BYTES_MAX} bytes")
