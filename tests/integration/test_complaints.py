from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/complaints.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
NAMED = re.findall(r"^- `([^`]+)`$", PAGE, flags=re.MULTILINE)


def test_there_are_twelve_and_each_names_its_tests() -> None:
    assert [section.split(".")[0] for section in SECTIONS] == [str(number) for number in range(1, 13)]
    assert all("\n- `tests/" in section for section in SECTIONS)
    assert PAGE.count("\n- ") == len(NAMED), "each entry is one test and nothing else"


@pytest.mark.parametrize("test", NAMED)
def test_a_test_that_is_named_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in names_in(ROOT / path)


def names_in(path: Path) -> set[str]:
    """The names that pytest would find, at whatever depth."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef | ast.Assign):
            found |= classes_of(node)
    return found


def classes_of(node: ast.ClassDef | ast.Assign) -> set[str]:
    """Hypothesis makes a test of a state machine by assigning it to a name."""
    if isinstance(node, ast.ClassDef):
        return {node.name} if node.name.startswith("Test") else set()
    names = (target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if name.startswith("Test")}
