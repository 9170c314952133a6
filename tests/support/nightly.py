"""Cases of which `make test` runs a few, and `make nightly` all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def is_exploring() -> bool:
    """Tell if properties are explored, as `make nightly` does, under a profile of its own."""
    return settings.get_current_profile_name() == "exploring"


def examples(*, few: int, night: int) -> int:
    """Number of examples of a property that takes long."""
    return night if is_exploring() else few


def first_of(cases: Iterable[object], kept: int = 1) -> list[ParameterSet]:
    """Mark every case after the first few as `nightly`."""
    return [pytest.param(case, marks=[pytest.mark.nightly] if at >= kept else []) for at, case in enumerate(cases)]
