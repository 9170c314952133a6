"""Formats errors for each API, whose clients understand only its own shape. Codes and statuses are the same in all.

An engine's error about a client's request is passed on byte for byte if it has the client's shape; otherwise its
message is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from gateway.core.kernel.effects import EndRequest
from gateway.core.vocabulary import RequestId
from gateway.door.errors import ErrorKind, kind_of
from gateway.request.engine_api import MESSAGES_PATH, RESPONSES_PATH
from gateway.request.engine_errors import in_openai_shape

_DONE = b"data: [DONE]\n\n"
_VERSION_HEADER = "anthropic-version"
"""Header that clients of the messages API send with every call, also to paths that both APIs have."""
_MESSAGE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorShape(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's shape as well, except for errors inside a stream."""
    MESSAGES = "messages"
    """Anthropic's shape."""


def shape_of(path: str, headers: Mapping[str, str]) -> ErrorShape:
    """Shape that the caller understands, by the path that it calls."""
    if path.startswith(MESSAGES_PATH) or (path.startswith("/v1/models") and _VERSION_HEADER in headers):
        return ErrorShape.MESSAGES
    return ErrorShape.RESPONSES if path.startswith(RESPONSES_PATH) else ErrorShape.OPENAI


def error_body(
    kind: ErrorKind,
    detail: str = "",
    param: str | None = None,
    *,
    shape: ErrorShape = ErrorShape.OPENAI,
    request_id: RequestId | None = None,
) -> bytes:
    message = _message_of(kind, detail)
    if shape is ErrorShape.MESSAGES:
        return msgspec.json.encode(_messages_error(kind.status, message, kind.code, request_id))
    return msgspec.json.encode({"error": _openai_error(kind, message, param)})


def error_event(end: EndRequest, shape: ErrorShape, request_id: RequestId, *, sequence_number: int) -> bytes:
    """Event that replaces the rest of a client's event stream; SDKs raise it as an error."""
    kind = kind_of(end)
    match shape:
        case ErrorShape.OPENAI:
            return b"data: " + error_body(kind, end.detail) + b"\n\n" + _DONE
        case ErrorShape.RESPONSES:
            error = _openai_error(kind, _message_of(kind, end.detail), None)
            told = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}}
            return _named_error({**told, "sequence_number": sequence_number, "error": error})
        case ErrorShape.MESSAGES:
            message = _message_of(kind, end.detail)
            return _named_error(_messages_error(kind.status, message, kind.code, request_id))


def refusal_in_shape(body: bytes, status: int, shape: ErrorShape, request_id: RequestId) -> bytes:
    """An engine's 4xx in the shape that the caller's SDK can read."""
    if shape is not ErrorShape.MESSAGES:
        return in_openai_shape(body, status)
    if _is_messages_error(_decode(body)):
        return body
    error = _decode(in_openai_shape(body, status)).get("error")
    told = error if isinstance(error, dict) else {}
    message = told.get("message") or f"The engine answered with status {status}."
    return msgspec.json.encode(_messages_error(status, message, told.get("code", status), request_id))


def refusal_event(body: bytes, status: int, shape: ErrorShape, request_id: RequestId) -> bytes:
    """An engine's 4xx as the only event of a stream, for a client that was already told to expect one."""
    body = refusal_in_shape(body, status, shape, request_id)
    match shape:
        case ErrorShape.OPENAI:
            return b"data: " + _on_one_line(body) + b"\n\n" + _DONE
        case ErrorShape.RESPONSES:
            error = _decode(body).get("error")
            told = {name: error.get(name) for name in ("code", "message", "param")} if isinstance(error, dict) else {}
            return _named_error({"type": "error", **told, "sequence_number": 0, "error": error})
        case ErrorShape.MESSAGES:
            return b"event: error\ndata: " + _on_one_line(body) + b"\n\n"


def _on_one_line(body: bytes) -> bytes:
    """Replace line breaks: JSON has them only between members, where they are not needed."""
    return b" ".join(body.split(b"\n")).replace(b"\r", b" ")


def _message_of(kind: ErrorKind, detail: str) -> str:
    return f"{kind.message} ({detail})" if detail and kind.shows_detail else kind.message


def _openai_error(kind: ErrorKind, message: str, param: str | None) -> dict[str, object]:
    return {"message": message, "type": kind.type, "param": param, "code": kind.code}


def _messages_error(status: int, message: str, code: object, request_id: RequestId | None) -> dict[str, object]:
    """Error of the messages API. The code stands twice: beside the type, and where the SDK looks for it."""
    default = "invalid_request_error" if status < 500 else "api_error"
    error = {
        "type": _MESSAGE_TYPES.get(status, default),
        "message": message,
        "code": code,
        "details": {"error_code": str(code)},
    }
    return {"type": "error", "error": error, "request_id": request_id}


def _named_error(content: dict[str, object]) -> bytes:
    return b"event: error\ndata: " + msgspec.json.encode(content) + b"\n\n"


def _is_messages_error(document: dict[str, Any]) -> bool:
    error = document.get("error")
    return document.get("type") == "error" and isinstance(error, dict) and {"type", "message"} <= error.keys()


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
