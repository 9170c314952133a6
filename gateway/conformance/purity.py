"""Imports and calls that modules that decide may use: the core's own, and policies beside it. It only reads source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

PURE_IMPORTS = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "gateway.core",
        "hashlib",
        "heapq",
        "itertools",
        "math",
        "msgspec",
        "mypy_extensions",
        "numpy",
        "operator",
        "random",
        "statistics",
        "struct",
        "types",
        "typing",
        "xxhash",
    }
)
IMPURE_CALLS = frozenset({"breakpoint", "eval", "exec", "hash", "input", "open", "print", "__import__"})


def impurities(tree: ast.AST, own: Iterable[str]) -> Iterator[str]:
    """Faults, each with its line. `own` names the packages of the module itself, which are checked likewise."""
    allowed = tuple(f"{name}." for name in (*PURE_IMPORTS, *own))
    for node, module in imports_of(tree):
        if not f"{module}.".startswith(allowed):
            yield f"{node.lineno}: imports {module}"
    for call, name in _calls_of(tree):
        if name in IMPURE_CALLS:
            yield f"{call.lineno}: calls {name}()"


def imports_of(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, name.name) for name in names)
            case ast.ImportFrom(module=module, level=level):
                yield node, "." * level + (module or "")
            case _:
                pass


def _calls_of(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Calls by name, except in `__hash__`, which dictionaries need and decisions never see."""
    match tree:
        case ast.FunctionDef(name="__hash__"):
            return
        case ast.Call(func=ast.Name(id=name)):
            yield tree, name
        case _:
            pass
    for child in ast.iter_child_nodes(tree):
        yield from _calls_of(child)
