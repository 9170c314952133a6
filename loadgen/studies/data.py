"""Reads a study's data from the YAML files in its folder: the paper's figures, what is tried, and texts of the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from mesh.yaml_file import read_yaml

_FOLDER = Path(__file__).parent
_Data = TypeVar("_Data")


@dataclass(frozen=True, slots=True)
class Look:
    """Texts on workloads that are held out while a rule is developed, and played once."""

    expected: str
    """Expectation, written before they are played; empty until then."""
    found: str
    """Findings of that one look."""


def read_data(name: str, shape: type[_Data]) -> _Data:
    """Content of a file beneath this folder, such as `eldr/paper.yaml`. Raises FileError, and msgspec.ValidationError
    for content of another shape."""
    return msgspec.convert(read_yaml(_FOLDER / name).content, shape, str_keys=True)
