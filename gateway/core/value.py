"""Decorator for the values that compiled modules define; all other values are msgspec structs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass that is immutable by type checking only: a frozen one takes four times as long to construct, and
    mypyc compiles no struct."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
