"""Identifiers of source files, each of which is read once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def identifiers_in(path: Path) -> frozenset[str]:
    """Identifiers of a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case _:
                pass  # has no name
    return frozenset(names)
