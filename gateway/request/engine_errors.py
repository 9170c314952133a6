"""An engine's error in the one shape that callers' SDKs read, whatever shape the engine gave it. Pure.

It adds nothing to what the engine said: an error that has the shape already stays as it is, byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

_KEYS = ("message", "type", "param", "code")
_TEXT_LENGTH_MAX = 2000


def in_openai_shape(body: bytes, status: int) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`. Anthropic's own shape is let through as well."""
    document = _decode(body)
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
    """The engine's own words; empty where there are none. They may quote the prompt: not for a log."""
    document = _decode(body)
    error = document.get("error") if isinstance(document, dict) else None
    found = (_fields(document, error) or {}).get("message")
    return found if isinstance(found, str) else _plain_text(body)


def error_type_of(body: bytes) -> str:
    """TGI names its kind of error beside the message."""
    document = _decode(body)
    kind = document.get("error_type") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else ""


def _fields(document: Any, error: Any) -> dict[str, Any] | None:
    """The fields of an error, from nested (OpenAI, llama.cpp), text (TGI, vLLM's keys), flat (SGLang), FastAPI's, or
    inside a response that failed."""
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
    """What a server without JSON says in a line or two; a page of HTML says nothing."""
    text = body.decode(errors="replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text[:_TEXT_LENGTH_MAX]


def _default_type(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
