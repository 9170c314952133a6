from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.engine.fields import ApiError
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.engine.tools import Tool, call_arguments, call_id, chosen_tool

ONE, TWO = Tool("one"), Tool("two")


def arguments(schema: dict[str, Any], prompt: bytes = b"p") -> Any:
    text = call_arguments(Tool("t", schema), model="m", prompt=prompt)
    assert len(text) % TOKEN_BYTES == 0
    return json.loads(text)


def test_the_named_tool_or_the_first_is_called() -> None:
    assert chosen_tool([ONE, TWO], must_call=False, name=None) is None
    assert chosen_tool([ONE, TWO], must_call=True, name=None) is ONE
    assert chosen_tool([ONE, TWO], must_call=False, name="two") is TWO


@pytest.mark.parametrize(("tools", "name"), [([], None), ([ONE], "three")])
def test_where_there_is_none_to_call_the_request_is_at_fault(tools: list[Tool], name: str | None) -> None:
    with pytest.raises(ApiError):
        chosen_tool(tools, must_call=True, name=name)


def test_values_have_the_types_of_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "unit": {"enum": ["c", "f"]},
            "hours": {"type": "array", "items": {"type": "number"}},
            "none": {"type": "null"},
            "place": {"type": "object", "properties": {"name": {"type": "string"}}},
            "odd": 5,
        },
    }
    made = arguments(schema)
    assert list(made) == ["city", "days", "exact", "unit", "hours", "none", "place", "odd"]
    kinds = [type(value) for value in made.values()]
    assert kinds == [str, int, bool, str, list, type(None), dict, str]
    assert made["unit"] == "c"
    assert made["city"] != made["place"]["name"]


def test_a_prompt_has_its_own_arguments_and_always_the_same() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert arguments(schema) == arguments(schema)
    assert arguments(schema) != arguments(schema, b"q")
    assert call_id(b"p") != call_id(b"q")


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "properties": 5}])
def test_without_properties_there_are_no_arguments(schema: dict[str, Any]) -> None:
    assert arguments(schema) == {}


def test_a_schema_has_an_end() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    assert arguments(deep)
