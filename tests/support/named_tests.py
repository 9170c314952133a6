"""Names of the tests that a page lists, and of those that pytest would find in a file."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def named_on(page: str) -> list[str]:
    """Entries of the page that consist of one test's name."""
    return re.findall(r"^- `(tests/[^`]+)`$", page, flags=re.MULTILINE)


def is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name in names_in(ROOT / path)


@cache
def names_in(path: Path) -> set[str]:
    """Names that pytest would find, at any depth."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef | ast.Assign):
            found |= _classes_of(node)
    return found


def _classes_of(node: ast.ClassDef | ast.Assign) -> set[str]:
    """Names of test classes. An assignment counts, too: Hypothesis turns a state machine into a test by one."""
    if isinstance(node, ast.ClassDef):
        return {node.name} if node.name.startswith("Test") else set()
    names = (target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if name.startswith("Test")}
