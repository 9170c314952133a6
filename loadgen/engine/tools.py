"""Which tool the emulated engine calls when it must call one, and with what. Foretold by the schema and the prompt.

Values are made to fit the schema's plain types; rules beyond them (patterns, limits, references) are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import xxhash

from loadgen.engine.fields import bad_value
from loadgen.engine.tokens import TOKEN_BYTES, continuation, token_count

_DEPTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    schema: dict[str, Any] = field(default_factory=dict)


def chosen_tool(tools: list[Tool], *, must_call: bool, name: str | None) -> Tool | None:
    """The one named, else the first. Raises ApiError when there is none to call."""
    if name is None:
        if must_call and not tools:
            raise bad_value("tool_choice", "required", "tools must be set to call one.")
        return tools[0] if must_call else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise bad_value("tool_choice", name, "the tool in tool_choice is not among tools.")


def call_arguments(tool: Tool, *, model: str, prompt: bytes) -> bytes:
    """The arguments as JSON, in whole tokens."""
    text = json.dumps(_value(tool.schema or {"type": "object"}, _words(model, prompt), depth=0)).encode()
    return text.ljust(token_count(text) * TOKEN_BYTES)


def call_id(prompt: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(prompt):016x}"


def _words(model: str, prompt: bytes) -> Iterator[str]:
    for number in count(1):
        yield continuation(model, prompt, number)[-TOKEN_BYTES:].decode().strip()


def _value(schema: Any, words: Iterator[str], *, depth: int) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    match schema.get("type"):
        case "object" if depth < _DEPTH_MAX:
            parts = schema.get("properties")
            wanted = parts if isinstance(parts, dict) else {}
            return {name: _value(part, words, depth=depth + 1) for name, part in wanted.items()}
        case "array" if depth < _DEPTH_MAX:
            return [_value(schema.get("items"), words, depth=depth + 1)]
        case "integer" | "number":
            return len(next(words))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return next(words)
