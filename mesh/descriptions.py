"""Describes a file's keys in its JSON Schema by the docstrings of the model. The source is read only when a schema is
asked for, rather than at each start of a program.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema


def describe_keys(schema: dict[str, Any], model: type[Any]) -> None:
    """Describe each key by the docstring beneath it in the source; for a model's `json_schema_extra`."""
    for name, words in _words_beneath(model):
        schema["properties"][name]["description"] = words


@dataclass(frozen=True)
class SchemaFrom:
    """Annotation that gives a type its schema."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.make()


def _words_beneath(model: type[Any]) -> Iterator[tuple[str, str]]:
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(written, ast.ClassDef), "a model is a class"
    for key, beneath in pairwise(written.body):
        if not isinstance(key, ast.AnnAssign) or not isinstance(key.target, ast.Name):
            continue
        if isinstance(beneath, ast.Expr) and isinstance(beneath.value, ast.Constant):
            yield key.target.id, inspect.cleandoc(str(beneath.value.value))
