"""Converts tokenize requests to the engine's dialect. Its answer goes to the client unchanged.

vLLM and SGLang take a prompt or a conversation. llama.cpp takes text under a name of its own, and would answer any
other request with no tokens at all, so that is refused here. An engine known only as OpenAI-compatible gets the request
as it is.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway.config.targets import Dialect
from gateway.request.body_edits import BodyMember
from gateway.request.engine_api import TOKENIZE_PATH
from gateway.request.legs import OutboundRequest

_NOTHING = msgspec.Raw()
_CONTENT = BodyMember("content")


class TokenizerLacks(Exception):
    """The engine's tokenizer does not support the request, for the reason given in words for the client."""


class _Asked(msgspec.Struct):
    prompt: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING


_ASKED = msgspec.json.Decoder(_Asked)


def in_words_of(dialect: Dialect, request: OutboundRequest) -> OutboundRequest:
    """The request as this engine takes it. Raises TokenizerLacks."""
    if dialect is not Dialect.LLAMACPP or request.path != TOKENIZE_PATH:
        return request
    asked = _ASKED.decode(request.body)
    if asked.content is not _NOTHING:
        return request
    if not bytes(asked.prompt).startswith(b'"'):
        raise TokenizerLacks("this engine's tokenizer takes one text, under `prompt` or `content`")
    return replace(request, body=b"".join(_CONTENT.set(request.body, bytes(asked.prompt), is_named=False)))
