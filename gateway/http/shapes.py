"""Each API has its own shape of an error, and its clients understand no other. Codes and statuses are the same in all.

What an engine says about a client's request is kept to the byte where its shape is the caller's; else its message is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from gateway.core.effects import EndRequest
from gateway.core.vocabulary import RequestId
from gateway.http.errors import ErrorKind, kind_of
from gateway.request.engine_api import MESSAGES_PATH, RESPONSES_PATH
from gateway.request.engine_errors import in_openai_shape

_DONE = b"data: [DONE]\n\n"
_VERSION_HEADER = "anthropic-version"
"""Sent by clients of the messages API with every call, also to paths that both APIs have."""
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


class Shape(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's too, but for errors inside a stream."""
    MESSAGES = "messages"
    """Anthropic's."""


def shape_of(path: str, headers: Mapping[str, str]) -> Shape:
    """What the caller understands, by what it calls."""
    if path.startswith(MESSAGES_PATH) or (path.startswith("/v1/models") and _VERSION_HEADER in headers):
        return Shape.MESSAGES
    return Shape.RESPONSES if path.startswith(RESPONSES_PATH) else Shape.OPENAI


def error_body(
    kind: ErrorKind,
    detail: str = "",
    param: str | None = None,
    *,
    shape: Shape = Shape.OPENAI,
    request_id: RequestId | None = None,
) -> bytes:
    message = _message_of(kind, detail)
    if shape is Shape.MESSAGES:
        return msgspec.json.encode(_messages_error(kind.status, message, kind.code, request_id))
    return msgspec.json.encode({"error": _openai_error(kind, message, param)})


def error_event(end: EndRequest, shape: Shape, request_id: RequestId, *, sequence_number: int) -> bytes:
    """What a client reads in place of the rest of its event stream; SDKs raise it as an error."""
    kind = kind_of(end)
    match shape:
        case Shape.OPENAI:
            return b"data: " + error_body(kind, end.detail) + b"\n\n" + _DONE
        case Shape.RESPONSES:
            error = _openai_error(kind, _message_of(kind, end.detail), None)
            told = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}}
            return _named_error({**told, "sequence_number": sequence_number, "error": error})
        case Shape.MESSAGES:
            message = _message_of(kind, end.detail)
            return _named_error(_messages_error(kind.status, message, kind.code, request_id))


def refusal_in_shape(body: bytes, status: int, shape: Shape, request_id: RequestId) -> bytes:
    """An engine's 4xx in words that the caller's SDK can read."""
    if shape is not Shape.MESSAGES:
        return in_openai_shape(body, status)
    if _is_messages_error(_decode(body)):
        return body
    error = _decode(in_openai_shape(body, status)).get("error")
    told = error if isinstance(error, dict) else {}
    message = told.get("message") or f"The engine answered with status {status}."
    return msgspec.json.encode(_messages_error(status, message, told.get("code", status), request_id))


def refusal_event(body: bytes, status: int, shape: Shape, request_id: RequestId) -> bytes:
    """The same, where the client has been told already that a stream comes: all of it, in place of the stream."""
    body = refusal_in_shape(body, status, shape, request_id)
    match shape:
        case Shape.OPENAI:
            return b"data: " + _on_one_line(body) + b"\n\n" + _DONE
        case Shape.RESPONSES:
            error = _decode(body).get("error")
            told = {name: error.get(name) for name in ("code", "message", "param")} if isinstance(error, dict) else {}
            return _named_error({"type": "error", **told, "sequence_number": 0, "error": error})
        case Shape.MESSAGES:
            return b"event: error\ndata: " + _on_one_line(body) + b"\n\n"


def _on_one_line(body: bytes) -> bytes:
    """JSON has no line break but between its members, where none is needed."""
    return b" ".join(body.split(b"\n")).replace(b"\r", b" ")


def _message_of(kind: ErrorKind, detail: str) -> str:
    return f"{kind.message} ({detail})" if detail and kind.shows_detail else kind.message


def _openai_error(kind: ErrorKind, message: str, param: str | None) -> dict[str, object]:
    return {"message": message, "type": kind.type, "param": param, "code": kind.code}


def _messages_error(status: int, message: str, code: object, request_id: RequestId | None) -> dict[str, object]:
    """The code stands twice: beside the type, and where the SDK looks for it."""
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
