"""Versions that `make upgrade` takes from git, and how their processes are started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.upgrade.releases import NoRelease, Release, newest_tag, unpacked, working_tree


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    commit(root, "one")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.net")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True)


def commit(root: Path, word: str) -> None:
    (root / "word.py").write_text(f"print({word!r})\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", word)


def said_by(release: Release) -> str:
    return subprocess.run([*release.runner, "word"], capture_output=True, text=True, check=True).stdout.strip()


def test_without_a_tag_it_is_said_what_to_give(repository: Path) -> None:
    git(repository, "tag", "other")
    with pytest.raises(NoRelease, match=r"no tag v.*FROM=REF"):
        newest_tag(repository)


def test_the_newest_release_is_that_of_the_nearest_tag(repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "v1.0.0")
    commit(repository, "two")
    git(repository, "tag", "v1.1.0")
    commit(repository, "three")
    assert newest_tag(repository) == "v1.1.0"
    old = unpacked(repository, "v1.1.0", tmp_path)
    assert (said_by(old), said_by(working_tree(repository))) == ("two", "three")
    assert unpacked(repository, "v1.1.0", tmp_path) == old
    assert old.tree.name == old.commit


def test_a_version_that_git_does_not_know_is_named(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(NoRelease, match="v9"):
        unpacked(repository, "v9", tmp_path)


def test_a_tree_with_changes_is_told_apart(repository: Path) -> None:
    clean = working_tree(repository).commit
    (repository / "word.py").write_text("")
    assert working_tree(repository).commit == f"{clean}-dirty"


def test_the_command_fails_where_there_is_nothing_to_upgrade_from() -> None:
    command = [sys.executable, "-m", "tests.upgrade.run", "--from", "no-such-version"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no-such-version" in done.stderr
