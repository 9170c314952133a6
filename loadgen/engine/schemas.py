"""JSON that follows a schema, determined by the words given: the emulated engine's structured answers and tool
arguments.

A schema with an unsupported feature is refused before anything is written, rather than answered with invalid JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from loadgen.engine.fields import ApiError

_DEPTH_MAX = 16
"""Maximum nesting of values; optional values deeper than this are left out."""
_STEPS_MAX = 10_000
_UNSUPPORTED = (
    "pattern", "patternProperties", "not", "if", "then", "else", "contains", "dependentRequired", "dependentSchemas",
    "uniqueItems", "propertyNames", "minProperties", "unevaluatedProperties", "$dynamicRef",
)  # fmt: skip
_FORMATS = {
    "date": "2026-11-22",
    "date-time": "2026-11-22T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.net",
    "hostname": "example.net",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.net/",
    "uuid": "6f1ed002-ab59-4f6f-8b34-0a1e0f1c2d3e",
}
_NAME = "schema"


def json_of(schema: Any, words: Iterator[str]) -> bytes:
    """Write a text that a validator of the schema accepts. Raises ApiError for an unsupported or unsatisfiable
    schema."""
    return json.dumps(_Writer(schema, words).value(schema, 0)).encode()


class _Writer:
    def __init__(self, root: Any, words: Iterator[str]) -> None:
        self._root = root
        self._words = words
        self._steps = 0

    def value(self, schema: Any, depth: int) -> Any:
        self._steps += 1
        if self._steps > _STEPS_MAX or depth > 2 * _DEPTH_MAX:
            raise _refused("it asks for more than an answer can hold")
        if schema is False:
            raise _refused("nothing satisfies it")
        whole = self._resolved(schema if isinstance(schema, dict) else {})
        if "const" in whole:
            return whole["const"]
        if isinstance(whole.get("enum"), list) and whole["enum"]:
            return whole["enum"][0]
        for name in ("anyOf", "oneOf"):
            if whole.get(name):
                return self.value({**_without(whole, name), **self._choice(whole[name], depth)}, depth + 1)
        return self._typed(whole, depth)

    def _choice(self, choices: list[Any], depth: int) -> dict[str, Any]:
        """First choice; at the maximum depth, the plainest."""
        resolved = [self._resolved(each) for each in choices if isinstance(each, dict)]
        if not resolved:
            raise _refused("anyOf and oneOf hold schemas")
        if depth < _DEPTH_MAX:
            return resolved[0]
        return min(resolved, key=lambda each: each.get("type") in ("object", "array") or "$ref" in each)

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Schema with its references resolved and its `allOf` parts merged."""
        for _ in range(_DEPTH_MAX):
            if unsupported := [name for name in _UNSUPPORTED if schema.get(name) not in (None, False, {}, [])]:
                raise _refused(f"{unsupported[0]} is not something that an emulated engine follows")
            if "$ref" in schema:
                schema = {**self._found(schema["$ref"]), **_without(schema, "$ref")}
            elif schema.get("allOf"):
                schema = _merged([_without(schema, "allOf"), *map(self._resolved, schema["allOf"])])
            else:
                return schema
        raise _refused("its references go round in a circle")

    def _found(self, reference: Any) -> dict[str, Any]:
        path = reference.removeprefix("#") if isinstance(reference, str) and reference.startswith("#") else None
        here = self._root
        for part in [] if path is None else path.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            here = here.get(name) if isinstance(here, dict) else None
        if path is None or not isinstance(here, dict):
            raise _refused(f"$ref {reference!r} leads nowhere inside it")
        return here

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        match _type_of(schema, depth):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return int(_number(schema, len(next(self._words)), is_whole=True))
            case "number":
                return _number(schema, len(next(self._words)), is_whole=False)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._text(schema)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """Object with every named property; at the maximum depth, only the required ones."""
        properties = schema.get("properties")
        parts = properties if isinstance(properties, dict) else {}
        required = schema.get("required") or []
        names = dict.fromkeys([*parts, *required]) if depth < _DEPTH_MAX else dict.fromkeys(required)
        more = schema.get("additionalProperties")
        rest = more if isinstance(more, dict) else {}
        return {name: self.value(parts.get(name, rest), depth + 1) for name in names}

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems") or []
        least = schema.get("minItems") or 0
        most = schema.get("maxItems")
        wanted = max(least, len(first), int(depth < _DEPTH_MAX and schema.get("items") is not False))
        wanted = wanted if most is None else min(wanted, most)
        if wanted < least:
            raise _refused("nothing satisfies minItems and maxItems")
        items = schema.get("items")
        kinds = [first[index] if index < len(first) else items for index in range(wanted)]
        return [self.value(kind, depth + 1) for kind in kinds]

    def _text(self, schema: dict[str, Any]) -> str:
        form = schema.get("format")
        if form in _FORMATS:
            return _FORMATS[form]
        text, least, most = next(self._words), schema.get("minLength") or 0, schema.get("maxLength")
        if least > _STEPS_MAX or (most is not None and most < least):
            raise _refused("nothing satisfies minLength and maxLength")
        while len(text) < least:
            text = f"{text} {next(self._words)}"
        return text if most is None else text[: max(most, least)]


def _type_of(schema: dict[str, Any], depth: int) -> str:
    told = schema.get("type")
    if isinstance(told, list):
        plain = [each for each in told if each not in ("object", "array")]
        told = (plain or told or [None])[0] if depth >= _DEPTH_MAX else (told or [None])[0]
    if isinstance(told, str):
        return told
    for name, kind in (("properties", "object"), ("required", "object"), ("items", "array"), ("prefixItems", "array")):
        if name in schema:
            return kind
    return "integer" if {"minimum", "maximum", "multipleOf"} & schema.keys() else "string"


def _number(schema: dict[str, Any], wanted: float, *, is_whole: bool) -> float:
    """Wanted number, or the nearest one allowed."""
    step = schema.get("multipleOf") or (1 if is_whole else None)
    margin = step or 0.5
    least: float = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + margin)
    most: float = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - margin)
    found: float = min(max(wanted, least), most)
    if step is not None:
        found = math.ceil(min(max(wanted, least), most) / step) * step
        found = found if found <= most else math.floor(most / step) * step
    if not least <= found <= most:
        raise _refused("no number satisfies it")
    return found


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name == "properties" and name in whole:
                whole[name] = {**whole[name], **value}
            elif name == "required" and name in whole:
                whole[name] = list(dict.fromkeys([*whole[name], *value]))
            else:
                whole[name] = value
    return whole


def _without(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _refused(why: str) -> ApiError:
    return ApiError(400, "BadRequestError", f"The JSON schema cannot be followed: {why}.", _NAME)
