"""Reads what a client asks of the emulated engine, and finds fault with it in vLLM's words.

It checks and never changes anything; what it refuses, it refuses with the status and body that a real engine gives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loadgen.engine.tokens import TOKEN_ID_MAX, Message, chat_prompt, text_of

CACHE_SALT_LENGTH_MAX = 128
_COMPLETION_TOKENS_DEFAULT = 16


class Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(slots=True)
class ApiError(Exception):
    """A request that an engine answers with an error body instead of tokens."""

    status: int
    type: str
    message: str
    param: str | None = None

    def content(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status},
        }


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One checked request for tokens."""

    endpoint: Endpoint
    model: str
    prompt: bytes
    output_tokens_max: int | None
    """As asked for; None: whatever the context leaves."""
    output_tokens_min: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    return_token_ids: bool


def parse_generation(endpoint: Endpoint, content_type: str, body: bytes, served: tuple[str, ...]) -> GenerationRequest:
    """Raises ApiError for what a real engine refuses before it counts tokens. Without a model the first is meant."""
    if content_type != "application/json":
        raise ApiError(
            400, "Bad Request", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )
    fields = _Fields(_json_object(body))
    stream = fields.flag("stream")
    include_usage = _stream_option(fields, "include_usage", stream=stream)
    request = GenerationRequest(
        endpoint=endpoint,
        prompt=_chat_prompt(fields) if endpoint is Endpoint.CHAT else _completion_prompt(fields),
        output_tokens_max=_output_tokens_max(endpoint, fields),
        output_tokens_min=fields.integer("min_tokens", at_least=0) or 0,
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and _stream_option(fields, "continuous_usage_stats", stream=stream),
        cache_salt=_cache_salt(fields),
        return_token_ids=fields.flag("return_token_ids"),
        model=_served_model(fields, served),
    )
    _check_sampling(fields)
    return request


def check_length(request: GenerationRequest, prompt_tokens: int, context_tokens_max: int) -> None:
    """Refuse what the context cannot hold."""
    asked = request.output_tokens_max
    if asked is not None and asked > context_tokens_max:
        raise _bad_value(
            "max_tokens",
            asked,
            f"max_tokens={asked} cannot be greater than max_model_len={context_tokens_max}. "
            "Please request fewer output tokens.",
        )
    if prompt_tokens >= context_tokens_max:
        raise _bad_value(
            "input_tokens",
            context_tokens_max + 1,
            f"This model's maximum context length is {context_tokens_max} tokens. However, your prompt contains at "
            f"least {context_tokens_max + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
        )
    if asked is not None and prompt_tokens + asked > context_tokens_max:
        raise _bad_value(
            "input_tokens",
            prompt_tokens,
            f"This model's maximum context length is {context_tokens_max} tokens. However, you requested {asked} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + asked} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
        )


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object whose members are read by type; null counts as absent, as it does in vLLM."""

    members: dict[str, Any]

    def value(self, name: str) -> Any:
        return self.members.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if value is None:
            raise _invalid(name, "missing", "Field required", self.members)
        if not isinstance(value, str):
            raise _invalid(name, "string_type", "Input should be a valid string", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise _invalid(name, "bool_type", "Input should be a valid boolean", value)
        return bool(value)

    def integer(self, name: str, *, at_least: int) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise _invalid(name, "int_type", "Input should be a valid integer", value)
        if value < at_least:
            raise _bad_value(name, value, f"{name} must be at least {at_least}, got {value}.")
        return value


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise _invalid_json(error.pos, error.msg) from None
    except UnicodeDecodeError as error:
        raise _invalid_json(error.start, error.reason) from None
    if not isinstance(value, dict):
        raise _invalid("", "model_attributes_type", "Input should be a valid dictionary", value)
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


def _invalid(name: str, kind: str, message: str, value: object) -> ApiError:
    where = f"body.{name}" if name else "body"
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, dict | list) else value
    fault = {"type": kind, "loc": where, "msg": message, "input": shown}
    return ApiError(400, "Bad Request", f"1 validation error:\n  {fault}", where)


def _bad_value(name: str, value: object, message: str) -> ApiError:
    return ApiError(400, "BadRequestError", f"{message} (parameter={name}, value={value})", name)


def _served_model(fields: _Fields, served: tuple[str, ...]) -> str:
    if fields.value("model") is None:
        return served[0]
    model = fields.text("model")
    if model not in served:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}."
        raise ApiError(404, "NotFoundError", message, "model")
    return model


def _check_sampling(fields: _Fields) -> None:
    temperature = fields.value("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise _bad_value("temperature", float(temperature), f"temperature must be non-negative, got {temperature:.1f}.")
    n = fields.value("n")
    if n not in (None, 1):
        raise _bad_value("n", n, f"n must be 1 at an emulated engine, got {n}.")


def _output_tokens_max(endpoint: Endpoint, fields: _Fields) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if endpoint is Endpoint.CHAT else ("max_tokens",)
    for name in names:
        tokens = fields.integer(name, at_least=1)
        if tokens is not None:
            return tokens
    return None if endpoint is Endpoint.CHAT else _COMPLETION_TOKENS_DEFAULT


def _stream_option(fields: _Fields, name: str, *, stream: bool) -> bool:
    options = fields.value("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise _invalid("stream_options", "model_attributes_type", "Input should be a valid dictionary", options)
    if not stream:
        raise _bad_value("stream_options", options, "Stream options can only be defined when `stream=True`.")
    return _Fields(options).flag(name)


def _cache_salt(fields: _Fields) -> str:
    salt = fields.value("cache_salt")
    if salt is None:
        return ""
    if (
        not isinstance(salt, str)
        or not 0 < len(salt) <= CACHE_SALT_LENGTH_MAX
        or any(sign in salt for sign in "@/\\\0")
    ):
        raise _bad_value("cache_salt", salt, "cache_salt must be a short non-empty string without @, / or \\.")
    return salt


def _chat_prompt(fields: _Fields) -> bytes:
    messages = fields.value("messages")
    if messages is None:
        raise _invalid("messages", "missing", "Field required", fields.members)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid("messages", "list_type", "Input should be a valid list", messages)
    return chat_prompt(Message(_Fields(message).text("role"), _text_of_content(message)) for message in messages)


def _text_of_content(message: dict[str, Any]) -> str:
    """The text of a message. Parts that are no text, and calls of tools, count with their JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    calls = message.get("tool_calls") or []
    return "".join(_text_of_part(part) for part in [*parts, *calls])


def _text_of_part(part: object) -> str:
    match part:
        case None:
            return ""
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return json.dumps(part, sort_keys=True)


def _completion_prompt(fields: _Fields) -> bytes:
    """Text or token ids; of several prompts a real engine serves all, this one serves exactly one."""
    prompt = fields.value("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "surrogatepass")
    elif isinstance(prompt, list) and all(_is_token_id(item) for item in prompt):
        text = text_of(prompt)
    else:
        raise _invalid("prompt", "string_type", "Input should be one string or one list of token ids", prompt)
    if not text:
        raise ApiError(
            400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
        )
    return text


def _is_token_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= TOKEN_ID_MAX
