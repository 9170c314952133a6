from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.rounds import first_failure

SETTINGS = "[pytest]\nmarkers = nightly\naddopts = -p no:schemathesis -p no:anyio\n"


@pytest.mark.parametrize(
    ("code", "caught_by"),
    [
        ("def test_it(): pass", ""),
        pytest.param("def is_no_test(): assert 0", "", marks=pytest.mark.nightly),
        ("def test_it(): pass\ndef test_worse(): assert 0\ndef test_worst(): assert 0", "test_a.py::test_worse"),
        pytest.param("import of_nothing", "test_a.py", marks=pytest.mark.nightly),
        pytest.param("def test_it():\n  while True: pass", "5 s of CPU time", marks=pytest.mark.nightly),
        pytest.param("def test_it(): bytes(9 << 30)", "test_a.py::test_it", marks=pytest.mark.nightly),
    ],
)
def test_a_round_ends_with_the_first_failure_or_at_a_limit(tmp_path: Path, code: str, caught_by: str) -> None:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_a.py").write_text(code)
    assert first_failure(tmp_path, ["test_a.py"], cpu_s=5) == caught_by
