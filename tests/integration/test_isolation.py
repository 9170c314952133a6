"""The guard of isolated tests fails tests, in a run of pytest of its own: a process with the guard and a few tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
GUARD = ("conftest.py", "support/__init__.py", "support/isolation.py", "support/still_taken.txt")
SMALL = """
import socket

import pytest

def bind():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))

@pytest.fixture(scope="module")
def bound():
    bind()

@pytest.fixture(scope="module")
def bound_at_last():
    yield
    bind()

def test_binds():
    bind()

def test_has_it_bound(bound):
    pass

def test_finds_it_bound(bound):
    pass

def test_computes():
    assert 1 + 1 == 2

def test_has_it_bound_at_last(bound_at_last):
    pass
"""
TAKERS = ["test_binds", "test_has_it_bound", "test_has_it_bound_at_last"]


def test_a_unit_test_that_binds_a_socket_fails_as_does_the_first_of_a_fixture_that_does(tmp_path: Path) -> None:
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
    assert "5 passed, 3 errors" in done.stdout
    assert re.findall(r"python -m pytest tests/unit/test_small.py::(\w+)", done.stdout) == TAKERS
