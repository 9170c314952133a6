"""Suggests the known key that an unknown one probably stands for, from the file's model. It reads no file, and changes
none.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema

_DEPTH_MAX = 16


class _WithoutDefaults(GenerateJsonSchema):
    """Generator that leaves defaults out, since only names are looked up and not every default can be written."""

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def meant_by(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    """Path of the only key in the file with that name; else the key nearest to the last part of the location, among
    those allowed beside it; else the path of the only key with a name that ends with it; None where there is none."""
    *way, written = location
    schema = _schema_of(model)
    beside = _names_at(schema, schema, tuple(way))
    names = {path: path.rpartition(".")[2] for path in _paths_in(model)}
    same = [path for path, name in names.items() if name == written]
    near = difflib.get_close_matches(str(written), beside, n=1, cutoff=0.7)
    longer = [path for path, name in names.items() if name.endswith(f"_{written}")]
    found = [each[0] for each in (same, near, longer) if len(each) == 1]
    return found[0] if found else None


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema(schema_generator=_WithoutDefaults)
    except PydanticInvalidForJsonSchema:
        return {}


@cache
def _paths_in(model: type[BaseModel]) -> tuple[str, ...]:
    schema = _schema_of(model)
    return tuple(_paths(schema, schema, "", 0))


def _paths(schema: dict[str, Any], whole: dict[str, Any], path: str, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    for each in _alternatives(schema, whole, 0):
        for name, part in each.get("properties", {}).items():
            here = f"{path}.{name}" if path else name
            yield here
            yield from _paths(part, whole, here, depth + 1)
        if path and isinstance(each.get("items"), dict):
            yield from _paths(each["items"], whole, f"{path}[]", depth + 1)


def _names_at(schema: dict[str, Any], whole: dict[str, Any], way: tuple[int | str, ...]) -> list[str]:
    places = _alternatives(schema, whole, 0)
    for part in way:
        nearer = []
        for place in places:
            if isinstance(part, int):
                nearer += [place.get("items"), *place.get("prefixItems", [])[part : part + 1]]
            elif part in place.get("properties", {}):
                nearer.append(place["properties"][part])
            else:
                nearer.append(place.get("additionalProperties"))
        places = [each for found in nearer if isinstance(found, dict) for each in _alternatives(found, whole, 0)]
    return [name for place in places for name in place.get("properties", {})]


def _alternatives(schema: dict[str, Any], whole: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    """Schemas that are allowed there, with references resolved."""
    if depth > _DEPTH_MAX:
        return []
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _alternatives(whole.get("$defs", {}).get(name, {}), whole, depth + 1)
    several = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    return [schema, *(found for each in several for found in _alternatives(each, whole, depth + 1))]
