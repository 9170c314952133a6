"""Reads a study's data from the YAML files in its folder: the paper's figures, what is tried, and texts of the page."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from mesh.yaml_file import read_yaml

_FOLDER = Path(__file__).parent
_Data = TypeVar("_Data")


def read_data(name: str, shape: type[_Data]) -> _Data:
    """Content of a file beneath this folder, such as `eldr/paper.yaml`. Raises FileError, and msgspec.ValidationError
    for content of another shape."""
    return msgspec.convert(read_yaml(_FOLDER / name).content, shape, str_keys=True)
