"""Detection of engine errors that say that a request exceeds the context length, and the limit they state. Pure.

Each engine has its own wording; a message that matches none of them is about something else.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.core.kernel.events import TooLong
from gateway.request.engine_errors import decode, message_of

_STATUSES: Final = frozenset({400, 413, 422})
_TOKENS_MAX: Final = 10**9
"""Bound of plausible token counts; no engine has so long a context."""
_LIMITS: Final = (
    re.compile(r"This model's maximum context length is ([0-9]{1,10}) tokens"),  # vLLM, OpenAI
    re.compile(r"max_tokens=[0-9]+ cannot be greater than max_model_len=([0-9]{1,10})\b"),  # vLLM, of the answer alone
    re.compile(r"Requested token count exceeds the model's maximum context length of ([0-9]{1,10}) tokens"),  # SGLang
    re.compile(
        r"The input \([0-9]+ tokens\) is longer than the model's context length \(([0-9]{1,10}) tokens\)"
    ),  # SGLang
    re.compile(r"request \([0-9]+ tokens\) exceeds the available context size \(([0-9]{1,10}) tokens\)"),  # llama.cpp
    re.compile(r"Input validation error: `inputs` tokens \+ `max_new_tokens` must be <= ([0-9]{1,10})\b"),  # TGI
)
"""Patterns match from the first character of the message: further on engines quote the client's text, which could say
anything."""
_ASKED: Final = re.compile(
    r"for a total of (?:at least )?([0-9]{1,10}) tokens"  # vLLM
    r"|requested a total of ([0-9]{1,10}) tokens"  # SGLang
    r"|you requested ([0-9]{1,10}) tokens"  # vLLM before 0.10, and others
    r"|prompt contains at least ([0-9]{1,10}) input tokens"  # vLLM: it stops counting there
    r"|The input \(([0-9]{1,10}) tokens\) is longer"  # SGLang
    r"|request \(([0-9]{1,10}) tokens\) exceeds"  # llama.cpp
)
_SAID_WITHIN: Final = 400
"""Characters of a message in which an engine states the numbers."""
_LLAMA_TYPE: Final = "exceed_context_size_error"
_CODES: Final = frozenset({"context_length_exceeded", _LLAMA_TYPE})
"""OpenAI's error code, which other engines use too, and llama.cpp's."""


def too_long_in(status: int, body: bytes) -> TooLong | None:
    """Return the limits that an error's whole body states; None if the error is about something else."""
    if status not in _STATUSES:
        return None
    error, text = _error_in(body), message_of(body)[:_SAID_WITHIN]
    limit = _limit_in(text)
    if limit is None and not any(error.get(key) in _CODES for key in ("code", "type")):
        return None
    if error.get("type") == _LLAMA_TYPE:
        return TooLong(_number(error.get("n_ctx")) or limit, _number(error.get("n_prompt_tokens")))
    asked = _ASKED.search(text)
    return TooLong(limit, None if asked is None else _number(int(next(filter(None, asked.groups())))))


def _limit_in(text: str) -> int | None:
    for pattern in _LIMITS:
        found = pattern.match(text)
        if found is not None:
            return _number(int(found[1]))
    return None


def _error_in(body: bytes) -> dict[str, Any]:
    document = decode(body)
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else {}


def _number(told: object) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < _TOKENS_MAX else None
