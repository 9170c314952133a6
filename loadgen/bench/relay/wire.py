"""Defines the bytes that the bench's engine and client exchange: prompts, requests, events, answers.

Both ends use these definitions, so that each knows what to expect of the other. It must not depend on any relay.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MODEL = "llama"
_OPENING_SHARE = 4
"""Divisor: this part of a prompt's bytes is the same in every prompt, the instructions that all users share."""
_WORDS = ("night", "region", "engine", "prefix", "gateway", "token", "stream", "queue", "replica", "overflow")


def _event(delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    """Event of the shape and size of vLLM's."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    return b"data: " + _compact(_head("chat.completion.chunk") | {"choices": [choice]}) + b"\n\n"


def _head(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-8bf45e7fd40c4154b2c77a93c0a51e2f", "object": kind, "created": 1795242050, "model": MODEL}


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def http_chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


_USAGE = {"prompt_tokens": 64, "total_tokens": 96, "completion_tokens": 32}
ROLE_EVENT = _event({"role": "assistant", "content": ""})
TOKEN_EVENT = _event({"content": " word"})
LAST_EVENT = _event({"content": " word"}, "length")
TOKEN_EVENT_WITH_ID = TOKEN_EVENT.replace(b'"token_ids":null', b'"token_ids":[2627]')
"""Event for requests with `return_token_ids`; a relay that strips the ids sends `TOKEN_EVENT` to its client."""
USAGE_EVENT = b"data: " + _compact(_head("chat.completion.chunk") | {"choices": [], "usage": _USAGE}) + b"\n\n"
DONE_EVENT = b"data: [DONE]\n\n"

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 08:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
ANSWER_WORDS = 32
"""Words of an answer that is not streamed."""
ANSWER_BODY = _compact(
    _head("chat.completion")
    | {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": " word" * ANSWER_WORDS,
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "tool_calls": [],
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _USAGE | {"prompt_tokens_details": None},
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }
)


BURST_TOKENS = 20_000
"""Number of tokens from which a stream is sent all at once, as fast as it is taken: for clients that read nothing."""


def page(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A whole answer of an engine that is not streamed."""
    return b"HTTP/1.1 %s\r\ndate: Sat, 21 Nov 2026 08:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: %s\r\n" % (
        status,
        kind,
    ) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def stream_events(tokens: int) -> int:
    """Number of events that a client sees of an answer of `tokens` tokens: the role, the tokens, the end."""
    return tokens + 2


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Fields that the engine reads from a request's body: just enough to answer it."""

    is_stream: bool
    tokens: int
    wants_usage: bool
    wants_ids: bool = False


_EDGE_BYTES = 4096
"""Part at both ends of a large body in which the engine looks for fields: reading all of it would take longer than all
else that the engine does."""
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
"""Pattern for both spellings, since a relay may send the newer one."""
_STREAM = re.compile(rb'"stream":\s*true')
_USAGE_WANTED = re.compile(rb'"include_usage":\s*true')
_IDS_WANTED = re.compile(rb'"return_token_ids":\s*true')


def read_ask(body: bytes) -> BenchRequest:
    if len(body) > 2 * _EDGE_BYTES:
        body = body[:_EDGE_BYTES] + body[-_EDGE_BYTES:]
    tokens = _TOKENS.search(body)
    return BenchRequest(
        is_stream=_STREAM.search(body) is not None,
        tokens=int(tokens[1]) if tokens else 1,
        wants_usage=_USAGE_WANTED.search(body) is not None,
        wants_ids=_IDS_WANTED.search(body) is not None,
    )


class Likeness(StrEnum):
    """Degree to which a relay's answers are like the engines'."""

    BYTES = "bytes"
    """The relay passes bytes on: an answer has the engine's length, number of events and end."""
    TEXT = "text"
    """The relay writes answers anew: all words of the engine's answer are in them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request in bytes, and the expected answer."""

    payload: bytes = field(repr=False)
    tokens: int = 0
    """Tokens of a streamed answer; 0 when it is not streamed."""
    likeness: Likeness = Likeness.BYTES


def prompts(count: int, size_bytes: int, rng: random.Random) -> list[str]:
    """Texts of that size that begin alike and then differ, as those of one application do."""
    opening = _text(size_bytes // _OPENING_SHARE, random.Random(0))
    return [opening + _text(size_bytes - len(opening), rng) for _ in range(count)]


def _text(size_bytes: int, rng: random.Random) -> str:
    words = " ".join(rng.choices(_WORDS, k=size_bytes // 4 + 1))
    return words[:size_bytes]


@dataclass(frozen=True, slots=True)
class Recipient:
    """Parts of a request that differ between relays, and the comparison that a relay's answers need."""

    host: str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    likeness: Likeness = Likeness.BYTES


def requests(texts: Sequence[str], to: Recipient, *, stream_tokens: int, padding_bytes: int = 0) -> list[Wanted]:
    """One request for each prompt; streamed if `stream_tokens` is not 0. Padding enlarges the body, not the prompt."""
    padding: dict[str, object] = {"metadata": {"padding": "x" * padding_bytes}} if padding_bytes else {}
    return [
        Wanted(
            _request(
                {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": stream_tokens or 32}
                | ({"stream": True} if stream_tokens else {})
                | padding,
                to,
            ),
            stream_tokens,
            to.likeness,
        )
        for text in texts
    ]


def _request(document: Mapping[str, object], to: Recipient) -> bytes:
    body = _compact(document)
    headers = {
        "host": to.host,
        "accept": "application/json",
        "accept-encoding": "gzip, deflate",
        "connection": "keep-alive",
        "content-type": "application/json",
        "user-agent": "OpenAI/Python 3.52.0",
        **({"authorization": f"Bearer {to.key}"} if to.key else {}),
        **to.headers,
        "content-length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body
