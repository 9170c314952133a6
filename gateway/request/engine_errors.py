"""Engine errors: their status, and their content in the one shape that clients' SDKs read. Pure.

It adds nothing to what the engine said: an error that already has the shape is passed on byte for byte.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_KEYS = ("message", "type", "param", "code")
_TEXT_LENGTH_MAX = 2000
_STATUS_BY_WORD = {
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded": 503,
    "overloaded_error": 503,
    "Service Unavailable": 503,
    "ServiceUnavailableError": 503,
}
"""Status by type or code. Errors of the messages API name a type instead of a status, those of the responses API a code
in words, TGI's an `error_type`; any other word is an engine fault."""
_VLLM_FULL = re.compile(r"'code': (429|503)\}\}, input_type=dict\]")
"""Overload in an `internal_error` of vLLM. Its messages API (0.32) reads vLLM's own chat stream, fails on an error
event there, and reports only that failure, with the end of the event's repr."""


def in_openai_shape(body: bytes, status: int) -> bytes:
    """Return the error as `{"error": {"message", "type", "param", "code"}}`. Anthropic's own shape is passed through as
    well."""
    document = decode(body)
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and (document.get("type") == "error" or all(key in error for key in _KEYS)):
        return body
    found = _fields(document, error) or {"message": _plain_text(body)}
    message = found.pop("message", None)
    whole = {
        "message": message if isinstance(message, str) and message else f"The engine answered with status {status}.",
        "type": _default_type(status),
        "param": None,
        "code": status,
        **{key: value for key, value in found.items() if value is not None},
    }
    return msgspec.json.encode({"error": whole})


def message_of(body: bytes) -> str:
    """Engine's message; empty if there is none. It may quote the prompt and must not be logged."""
    document = decode(body)
    error = document.get("error") if isinstance(document, dict) else None
    found = (_fields(document, error) or {}).get("message")
    return found if isinstance(found, str) else _plain_text(body)


def error_type_of(body: bytes) -> str:
    """Kind of error that TGI names beside the message; empty for other engines."""
    document = decode(body)
    kind = document.get("error_type") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else ""


def status_in(document: dict[str, Any]) -> int | None:
    """Status of an error inside a stream or in an answer that began with success."""
    error = _error_in(document)
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code[:4])
    if isinstance(code, int):
        return code if 400 <= code <= 599 else None
    for word in (code, error.get("type"), error.get("error_type")):
        if isinstance(word, str) and word in _STATUS_BY_WORD:
            return _STATUS_BY_WORD[word]
    return _quoted_status(error)


def decode(payload: bytes) -> Any:
    """Decode JSON; None for anything that is not JSON, and for null."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fields(document: Any, error: Any) -> dict[str, Any] | None:
    """Fields of an error in any of the shapes nested (OpenAI, llama.cpp), text (TGI, vLLM's keys), flat (SGLang),
    FastAPI's, or inside a failed response."""
    if isinstance(error, dict):
        return dict(error)
    if not isinstance(document, dict):
        return None
    response = document.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        return dict(response["error"])
    if isinstance(error, str):
        return {"message": error, "type": document.get("error_type")}
    if "message" in document:
        return {key: value for key, value in document.items() if key not in ("object", "error")}
    detail = document.get("detail")
    return {"message": detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()} if detail else None


def _plain_text(body: bytes) -> str:
    """Text of an error without JSON, in a line or two; empty for HTML."""
    text = body.decode(errors="replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text[:_TEXT_LENGTH_MAX]


def _default_type(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def _error_in(document: dict[str, Any]) -> dict[str, Any]:
    """Object with the error's kind: the error itself, that of the failed response, or the document."""
    response = document.get("response")
    holders = (document, response) if isinstance(response, dict) else (document,)
    errors = [holder.get("error") for holder in holders]
    return next((error for error in errors if isinstance(error, dict)), document)


def _quoted_status(error: dict[str, Any]) -> int | None:
    message = error.get("message")
    if error.get("type") != "internal_error" or not isinstance(message, str):
        return None
    quoted = _VLLM_FULL.search(message)
    return int(quoted[1]) if quoted is not None else None
