"""The guard of isolated tests fails a test: a run of pytest of its own, as a process, with the guard and two tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
GUARD = ("conftest.py", "support/__init__.py", "support/isolation.py", "support/still_taken.txt")
SMALL = """
import socket

def test_binds():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))

def test_computes():
    assert 1 + 1 == 2
"""


def test_a_unit_test_that_binds_a_socket_fails(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for folder in ("support", "unit"):
        (tests / folder).mkdir(parents=True)
    (tests / "__init__.py").touch()
    for name in GUARD:
        shutil.copy(TESTS / name, tests / name)
    (tests / "unit/test_small.py").write_text(SMALL)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly\n    real\n    slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "it takes sockets (socket.bind)" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout
    assert "python -m pytest tests/unit/test_small.py::test_binds" in done.stdout
