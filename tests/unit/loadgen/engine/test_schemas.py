from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from loadgen.engine.fields import ApiError
from loadgen.engine.schemas import json_of

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
        }
    },
    "$ref": "#/$defs/node",
}
LINKED = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "value": {"type": "integer"}},
    "required": ["next", "value"],
}
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["days"]},
    {"type": "object", "required": ["a", "b"], "additionalProperties": {"type": "number"}},
    {"type": "object", "properties": {"a": {"const": 7}, "b": {"enum": ["x", "y"]}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 0},
    {"type": "integer", "minimum": 10, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": 4, "multipleOf": 5},
    {"type": "integer", "exclusiveMaximum": -3},
    {"type": "number", "minimum": 0.25, "maximum": 0.5},
    {"type": "number", "maximum": -8, "multipleOf": 2.5},
    {"type": "string", "minLength": 40, "maxLength": 41},
    {"type": "string", "maxLength": 2},
    *({"type": "string", "format": form} for form in ("date", "date-time", "email", "ipv4", "ipv6", "uuid", "uri")),
    {"type": ["null", "string"]},
    {"type": ["object", "null"], "properties": {"a": {"type": "boolean"}}},
    {"anyOf": [{"type": "integer"}, {"type": "string"}], "minimum": 100},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}, {"type": "null"}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {"properties": {"inferred": {"items": {"type": "integer"}, "minItems": 1}}, "required": ["inferred"]},
    TREE,
    LINKED,
    True,
    {},
]
REFUSED: list[tuple[Any, str]] = [
    ({"type": "string", "pattern": "^a+$"}, "pattern is not something"),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": {"not": {"type": "null"}}}}, "not is not something"),
    ({"$ref": "https://example.net/schema"}, "leads nowhere inside it"),
    ({"$ref": "#/$defs/none"}, "leads nowhere inside it"),
    ({"$ref": "#"}, "in a circle"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no number satisfies it"),
    ({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}, "no number satisfies it"),
    ({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1}, "minItems and maxItems"),
    ({"type": "object", "properties": {"a": False}}, "nothing satisfies it"),
    ({"type": "array", "items": {"type": "null"}, "minItems": 10**6}, "more than an answer can hold"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "more than an answer can hold"),
]


def words() -> Iterator[str]:
    return (f"wd{number}" for number in count())


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_what_is_written_follows_the_schema(schema: Any) -> None:
    Draft202012Validator.check_schema(schema)
    written = json.loads(json_of(schema, words()))
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(written)


@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=lambda each: str(each)[:50])
def test_what_cannot_be_followed_is_refused_and_never_written_wrong(schema: Any, why: str) -> None:
    with pytest.raises(ApiError) as caught:
        json_of(schema, words())
    assert caught.value.status == 400
    assert why in caught.value.message
