"""How the plain values of the mesh are made. Dozens come and go with every request, so making one has to be cheap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """A dataclass that nobody changes: the type checker sees to that, since a frozen one would take four times as long
    to make."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
