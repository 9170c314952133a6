"""Cases of which `make test` runs a few, and `make nightly` all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def examples(*, few: int, night: int) -> int:
    """Number of examples of a property that takes long; `make nightly` explores under a profile of its own."""
    return night if settings.get_current_profile_name() == "exploring" else few


def first_of(cases: Iterable[object], kept: int = 1) -> list[ParameterSet]:
    """Mark every case after the first few as `nightly`."""
    return [pytest.param(case, marks=[pytest.mark.nightly] if at >= kept else []) for at, case in enumerate(cases)]


def seeds_of(worlds: int, *, few: int, at_once: int) -> list[ParameterSet]:
    """Seeds of the first few worlds for `make test`, and of all worlds for `make nightly`, `at_once` in each case."""
    cases = [range(1, few + 1), *(range(first, first + at_once) for first in range(1, worlds + 1, at_once))]
    ids = [f"{seeds[0]}-{seeds[-1]}" for seeds in cases]
    marks: list[list[pytest.MarkDecorator]] = [[], *([pytest.mark.nightly] for _ in cases[1:])]
    return [pytest.param(case, marks=mark, id=name) for case, mark, name in zip(cases, marks, ids, strict=True)]
