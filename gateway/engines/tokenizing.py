"""Asking an engine's tokenizer, in the words of its dialect. What it answers goes to the client as it is.

vLLM and SGLang take a prompt or a conversation; llama.cpp takes text, under a name of its own, and would answer any
other with no tokens at all: that is refused here. Of what is only known to speak OpenAI's API, the path is asked.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gateway.config.targets import Dialect
from gateway.request.body_edits import Member
from gateway.request.engine_api import TOKENIZE_PATH
from gateway.request.legs import OutboundRequest

_NOTHING = msgspec.Raw()
_CONTENT = Member("content")


class TokenizerLacks(Exception):
    """The engine's tokenizer cannot be asked that, in words for the client."""


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
