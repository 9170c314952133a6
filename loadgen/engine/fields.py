"""Typed reading of JSON bodies, with errors in vLLM's wording. It checks and never changes a body."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import xxhash

from loadgen.engine.tokens import TOKEN_BYTES

CACHE_SALT_LENGTH_MAX = 128
_MESSAGES_TYPES = {404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}
_TEXT_TYPES = ("text", "input_text", "output_text")
_MEDIA_TYPES = frozenset(
    ("image_url", "image", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file", "document")
)
MEDIA_TOKENS = 1105
"""Tokens of each image, audio, video or file part, however long its data: an image of 1024 × 846 in Qwen2-VL."""


@dataclass(slots=True)
class ApiError(Exception):
    """Request that an engine answers with an error body instead of tokens."""

    status: int
    type: str
    message: str
    param: str | None = None

    def content(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status},
        }

    def messages_content(self) -> dict[str, Any]:
        """Error body in the form of the messages API."""
        kind = _MESSAGES_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def json_body(content_type: str, body: bytes) -> Fields:
    """Parse a body as a JSON object. Raises ApiError if it is none."""
    if content_type != "application/json":
        raise ApiError(
            400, "Bad Request", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )
    return Fields(_json_object(body))


@dataclass(frozen=True, slots=True)
class Fields:
    """JSON object whose members are read by type; null counts as absent, as it does in vLLM."""

    members: dict[str, Any]

    def value(self, name: str) -> Any:
        return self.members.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if value is None:
            raise invalid(name, "missing", "Field required", self.members)
        if not isinstance(value, str):
            raise invalid(name, "string_type", "Input should be a valid string", value)
        return value

    def objects(self, name: str) -> list[Fields]:
        """List of objects; empty if the member is absent."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise invalid(name, "list_type", "Input should be a valid list", value)
        return [Fields(each) for each in value]

    def object(self, name: str) -> Fields | None:
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise invalid(name, "dict_type", "Input should be a valid dictionary", value)
        return None if value is None else Fields(value)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(name, "bool_type", "Input should be a valid boolean", value)
        return bool(value)

    def integer(self, name: str, *, at_least: int) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(name, "int_type", "Input should be a valid integer", value)
        if value < at_least:
            raise bad_value(name, value, f"{name} must be at least {at_least}, got {value}.")
        return value


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise _invalid_json(error.pos, error.msg) from None
    except UnicodeDecodeError as error:
        raise _invalid_json(error.start, error.reason) from None
    if not isinstance(value, dict):
        raise invalid("", "model_attributes_type", "Input should be a valid dictionary", value)
    return value


def _invalid_json(position: int, reason: str) -> ApiError:
    where = f"body.{position}"
    fault = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": reason},
    }
    return ApiError(400, "Bad Request", f"1 validation error:\n  {fault}", where)


def invalid(name: str, kind: str, message: str, value: object) -> ApiError:
    where = f"body.{name}" if name else "body"
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, dict | list) else value
    fault = {"type": kind, "loc": where, "msg": message, "input": shown}
    return ApiError(400, "Bad Request", f"1 validation error:\n  {fault}", where)


def bad_value(name: str, value: object, message: str) -> ApiError:
    return ApiError(400, "BadRequestError", f"{message} (parameter={name}, value={value})", name)


def served_model(fields: Fields, served: tuple[str, ...]) -> str:
    if fields.value("model") is None:
        return served[0]
    model = fields.text("model")
    if model not in served:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}."
        raise ApiError(404, "NotFoundError", message, "model")
    return model


def cache_salt_of(fields: Fields) -> str:
    salt = fields.value("cache_salt")
    if salt is None:
        return ""
    if (
        not isinstance(salt, str)
        or not 0 < len(salt) <= CACHE_SALT_LENGTH_MAX
        or any(sign in salt for sign in "@/\\\0")
    ):
        raise bad_value("cache_salt", salt, "cache_salt must be a short non-empty string without @, / or \\.")
    return salt


def text_of_content(message: dict[str, Any]) -> str:
    """Text of a message. A media part counts as a stand-in text; other parts and tool calls count as their JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    calls = message.get("tool_calls")
    return "".join(text_of_part(part) for part in [*parts, *(calls if isinstance(calls, list) else [])])


def text_of_part(part: object) -> str:
    match part:
        case None:
            return ""
        case str():
            return part
        case {"type": str(kind), "text": str(text)} if kind in _TEXT_TYPES:
            return text
        case _:
            seen = _seen(part)
            return seen if isinstance(seen, str) else json.dumps(seen, sort_keys=True)


def _seen(part: Any) -> Any:
    """Copy of the part with a text of MEDIA_TOKENS tokens in place of each media part; equal media have equal texts."""
    match part:
        case {"type": str(kind), "source": {"type": "text" | "content"} as source} if kind in _MEDIA_TYPES:
            return part | {"source": {name: _seen(each) for name, each in source.items()}}
        case {"type": str(kind)} if kind in _MEDIA_TYPES:
            digest = xxhash.xxh3_64_hexdigest(json.dumps(part, sort_keys=True).encode())
            return (digest * MEDIA_TOKENS)[: TOKEN_BYTES * MEDIA_TOKENS]
        case dict():
            return {name: _seen(each) for name, each in part.items()}
        case list():
            return [_seen(each) for each in part]
        case _:
            return part
