"""Tool calls of the emulated engine: which tool it calls and with what arguments, determined by schema and prompt.

The form of the arguments is decided by `schemas.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import xxhash

from loadgen.engine.fields import bad_value
from loadgen.engine.schemas import json_of
from loadgen.engine.tokens import TOKEN_BYTES, continuation, token_count


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    schema: dict[str, Any] = field(default_factory=dict)


def chosen_tool(tools: list[Tool], *, must_call: bool, name: str | None) -> Tool | None:
    """Tool to call: the named one, else the first if a call is required. Raises ApiError when there is none to call."""
    if name is None:
        if must_call and not tools:
            raise bad_value("tool_choice", "required", "tools must be set to call one.")
        return tools[0] if must_call else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise bad_value("tool_choice", name, "the tool in tool_choice is not among tools.")


def call_arguments(tool: Tool, *, model: str, prompt: bytes) -> bytes:
    """Arguments of a call as JSON, in whole tokens. Raises ApiError."""
    return json_text(tool.schema or {"type": "object"}, model=model, prompt=prompt)


def json_text(schema: Any, *, model: str, prompt: bytes) -> bytes:
    """JSON that follows the schema, in whole tokens. Raises ApiError."""
    text = json_of(schema, _words(model, prompt))
    return text.ljust(token_count(text) * TOKEN_BYTES)


def call_id(prompt: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(prompt):016x}"


def _words(model: str, prompt: bytes) -> Iterator[str]:
    for number in count(1):
        yield continuation(model, prompt, number)[-TOKEN_BYTES:].decode().strip()
