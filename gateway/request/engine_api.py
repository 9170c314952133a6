"""Engine API calls that clients may make through a gateway. Other calls that an engine offers (loading adapters,
sleeping, aborting requests) are not reachable.

The HTTP edge and the peer edge use the same list. Values only.
"""

from __future__ import annotations

import re

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
EMBEDDINGS_PATH = "/v1/embeddings"
TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"
UNGENERATING_PATHS = frozenset({COUNT_TOKENS_PATH, TOKENIZE_PATH, DETOKENIZE_PATH})
"""Calls that run no inference: they are free and touch no cache."""
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE_PATHS = ("/v1/score", "/score")

POSTED_PATHS = (
    CHAT_PATH,
    COMPLETIONS_PATH,
    RESPONSES_PATH,
    MESSAGES_PATH,
    COUNT_TOKENS_PATH,
    EMBEDDINGS_PATH,
    *RERANK_PATHS,
    *SCORE_PATHS,
    TOKENIZE_PATH,
    DETOKENIZE_PATH,
)
"""Calls with a body that names a model."""

REQUEST_ID_HEADER = "x-request-id"
ENGINE_HEADERS = ("accept", "content-type", "traceparent", "tracestate", "user-agent", "x-session-id")
"""Only client headers that engines get, besides the request's id: neither credentials nor anything that steers the
engine."""

RESPONSE_ID_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Ids of stored responses that may become part of a path."""
_QUERY = r"(?:\?[A-Za-z0-9_.=&%\[\]-]{1,512})?"
_STORED = re.compile(rf"{RESPONSES_PATH}/(?P<id>{RESPONSE_ID_PATTERN.pattern})(?P<cancel>/cancel)?{_QUERY}")


def stored_response_of(method: str, path: str) -> str | None:
    """Id of the stored response that a call reads, cancels or deletes; None for any other call."""
    match = _STORED.fullmatch(path)
    if match is None or method not in (("POST",) if match["cancel"] else ("GET", "DELETE")):
        return None
    return match["id"]


def is_engine_call(method: str, path: str) -> bool:
    return (method == "POST" and path in POSTED_PATHS) or stored_response_of(method, path) is not None
