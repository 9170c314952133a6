"""Check of pages and docstrings: `.ci/prose` lists what cannot be read cold, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONG = "A gateway " + "and a peer " * 15


def checked(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [sys.executable, ROOT / ".ci/prose", path], cwd=ROOT, capture_output=True, text=True, check=False
    )


def checked_at(root: Path, file: str, text: str) -> subprocess.CompletedProcess[str]:
    """Check of one file of a project below `root`."""
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    return subprocess.run(
        [sys.executable, ROOT / ".ci/prose", file], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("A peer hears\nwhoever asks.", "2: says 'whoever'"),
        ("A request goes to us.", "1: says 'us'"),
        ("We forward it.", "1: says 'We'"),
        ("It is simply retried.", "1: says 'simply'"),
        ("# Page\n\nA region takes\nin a request.", "3: says 'takes in', which is 'accepts'"),
        (f"Short.\n\n- {LONG}.", "3: has a sentence of 47 words"),
    ],
)
def test_a_page_that_cannot_be_read_cold_is_listed(tmp_path: Path, text: str, fault: str) -> None:
    done = checked(tmp_path / "page.md", text)

    assert done.returncode == 1
    assert f"page.md:{fault}" in done.stdout
    assert "\n1 texts cannot be read cold." in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "The US, [us-east-1](us.md) and `whoever` are named.",
        "```sh\nwe simply take in\n```",
        f"| {LONG} | a table |",
        "A gateway does no I/O. It forwards.",
    ],
)
def test_code_names_and_tables_pass(tmp_path: Path, text: str) -> None:
    done = checked(tmp_path / "page.md", text)

    assert (done.returncode, done.stdout) == (0, "")


def test_docstrings_begin_with_a_noun_or_a_verb(tmp_path: Path) -> None:
    done = checked(tmp_path / "module.py", '"""Of a request."""\n')

    assert done.returncode == 1
    assert "module.py:1: begins with 'of'" in done.stdout


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("gateway/module.py", 'ERROR = f"{1}: nobody answers"\n', "1: says 'nobody' in a string: : nobody answers"),
        ("mesh/module.py", 'assert True, "somebody\'s"\n', "1: says 'somebody' in a string: somebody's"),
        ("nightside.py", 'told(\n    ":Whoever_waits"\n)\n', "2: says 'Whoever' in a string: :Whoever_waits"),
    ],
)
def test_strings_of_programs_name_machines(tmp_path: Path, file: str, text: str, fault: str) -> None:
    done = checked_at(tmp_path, file, text)

    assert (done.returncode, done.stdout) == (1, f"{file}:{fault}\n1 texts cannot be read cold.\n")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tests/module.py", 'X = "nobody asks"\n'),
        ("gateway/module.py", 'X = "a nobodyish name"\n'),
    ],
)
def test_longer_words_and_strings_of_tests_pass(tmp_path: Path, file: str, text: str) -> None:
    done = checked_at(tmp_path, file, text)

    assert (done.returncode, done.stdout) == (0, "")
