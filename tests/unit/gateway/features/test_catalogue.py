"""Features outside the core, by their two lists."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config.region_file import RegionFile
from gateway.features.catalogue import KINDS
from gateway.features.sections import FeatureSections

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "gateway/features"
WORDS = {"scaling": "scaling"}
"""Words by which a feature would be named, for those whose halves are whole."""
STILL_NAMED = {
    "scaling": {
        "gateway/app/status_cli.py",
    }
}
"""Files outside a feature's folders that still name it."""


def test_each_package_is_listed_once_by_its_name() -> None:
    packages = [path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()]
    assert sorted(packages) == sorted(kind.name for kind in KINDS)
    assert packages


def test_the_region_file_has_the_sections_keys() -> None:
    keys = {each.name for each in fields(FeatureSections)}
    assert keys <= {kind.name for kind in KINDS}
    assert keys <= RegionFile.model_fields.keys()


@pytest.mark.parametrize("feature", WORDS)
def test_no_file_outside_its_folders_names_a_feature(feature: str) -> None:
    own = (FOLDER / feature, ROOT / "gateway/core/features" / feature, *FOLDER.glob("*.py"))
    others = [path for path in (ROOT / "gateway").rglob("*.py") if not any(path.is_relative_to(each) for each in own)]
    named = {str(path.relative_to(ROOT)) for path in others if WORDS[feature] in " ".join(names_in(path)).lower()}
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
