"""Mutants of a module: each changes one place in one of its functions, by one of mutmut's operators.

Annotations, decorators, docstrings and defaults that are no plain values stay as they are, as do calls of `len` and
`isinstance`: so mutmut has it. Unlike there, properties are changed as well. Runs in .venv-mutants.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from mutmut.mutation.mutators import mutation_operators


def _is_left_alone(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Param):
        return not isinstance(node.default, (cst.Name, cst.BaseNumber, cst.BaseString))
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name) and node.func.value in {"len", "isinstance"}
    return isinstance(node, (cst.Annotation, cst.Decorator))


def _changes(node: cst.CSTNode, is_in_function: bool = False) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Places below a node, in the order of the source, each with what one mutant has there."""
    if _is_left_alone(node):
        return
    if is_in_function:
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                yield from ((node, changed) for changed in operator(node))
    for child in node.children:
        yield from _changes(child, is_in_function or isinstance(node, cst.FunctionDef))


def count(code: str) -> int:
    """Number of mutants of this code."""
    return sum(1 for _ in _changes(cst.parse_module(code)))


def mutated(code: str, number: int) -> str:
    """Code of the mutant of this number, from 0. Raises IndexError."""
    module = cst.parse_module(code)
    place, changed = list(_changes(module))[number]
    return str(module.deep_replace(place, changed).code)
