"""Reads a study's data from the YAML files in its folder: the paper's figures, what is tried, and texts of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    for content of another shape, with a key that the shape lacks among it."""
    content = read_yaml(_FOLDER / name).content
    data = msgspec.convert(content, shape, str_keys=True)
    for key in _keys_left_out(content, msgspec.to_builtins(data, str_keys=True)):
        raise msgspec.ValidationError(f"{name}: there is no key `{key}`")
    return data


def _keys_left_out(content: object, read: object) -> Iterator[str]:
    """Keys of mappings, at any depth, that were not read: msgspec ignores those that a dataclass lacks."""
    if isinstance(content, Mapping) and isinstance(read, Mapping):
        yield from (str(key) for key in content if str(key) not in read)
        for key, value in content.items():
            yield from _keys_left_out(value, read.get(str(key)))
    elif isinstance(content, Sequence) and isinstance(read, Sequence) and not isinstance(content, str):
        for value, its in zip(content, read, strict=False):
            yield from _keys_left_out(value, its)
