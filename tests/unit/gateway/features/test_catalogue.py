"""Features outside the core, by their two lists."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config.region_file import RegionFile
from gateway.features.catalogue import KINDS
from gateway.features.sections import FeatureSections

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "gateway/features"
WORDS = {"prices": r"price|money|carbon|(?<!con)currency", "scaling": "scaling"}
"""Words by which a feature would be named, for those whose halves are whole."""
STILL_NAMED = {
    "prices": {
        "gateway/conformance/upsets.py",  # a list with a line for each feature that upsets placement policies
        "gateway/core/kernel/config.py",  # the policy's name and its keys, under `placement`
        "gateway/core/kernel/events.py",  # the union of events has a line for the feature's own
        "gateway/core/vocabulary.py",  # reasons of placements
    },
    "scaling": set(),
}
"""Files outside a feature's folders that still name it. The lists only become shorter."""


def test_each_package_is_listed_once_by_its_name() -> None:
    packages = [path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()]
    assert sorted(packages) == sorted(kind.name for kind in KINDS)
    assert packages


def test_the_region_file_has_the_sections_keys() -> None:
    keys = {each.name for each in fields(FeatureSections)}
    assert keys
    assert keys <= {kind.name for kind in KINDS}
    assert keys <= RegionFile.model_fields.keys()


@pytest.mark.parametrize("feature", WORDS)
def test_no_file_outside_its_folders_names_a_feature(feature: str) -> None:
    word = re.compile(WORDS[feature], re.IGNORECASE)
    sources = (path for folder in ("gateway", "mesh") for path in (ROOT / folder).rglob("*.py"))
    files = [path for path in sources if "features" not in path.parts]
    named = {str(path.relative_to(ROOT)) for path in files if any(word.search(name) for name in names_in(path))}
    assert named == STILL_NAMED[feature]


def names_in(path: Path) -> set[str]:
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
    return names
