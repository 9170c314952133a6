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
