"""The hand-seeded defects fit the core as it is, and one that is easy to see is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants.run import CORE, MUTANTS, ROOT, Mutant, hunt


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_the_core_and_leaves_it_python(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / CORE).mkdir(parents=True)
    shutil.copy(ROOT / CORE / mutant.file, tmp_path / CORE)
    before = (tmp_path / CORE / mutant.file).read_text()
    mutant.mutate(tmp_path)
    after = (tmp_path / CORE / mutant.file).read_text()
    assert after != before
    compile(after, mutant.file, "exec")


@pytest.mark.slow
def test_a_mutant_is_caught_and_the_core_itself_is_not() -> None:
    assert hunt(MUTANTS[1], seeds=5).seed is not None
    assert hunt(None, seeds=5).seed is None
