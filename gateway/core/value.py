"""Decorator for the plain value classes of the mesh. Dozens of values are made per request, so making one must be
cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass that is immutable by type checking only: a frozen one takes four times as long to construct."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
