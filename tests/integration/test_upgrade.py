"""Versions that `make upgrade` takes from git, and how their processes are started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.kills import run as kills
from tests.upgrade import run as upgrade
from tests.upgrade.releases import LOCK, NoRelease, Release, is_tag, newest_tag, state_of, unpacked, working_tree


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
    (root / LOCK).write_text("")
    git(root, "add", ".")
    git(root, "commit", "-qm", word)


def said_by(release: Release) -> str:
    return subprocess.run([*release.runner, "word"], capture_output=True, text=True, check=True).stdout.strip()


def test_without_a_tag_it_is_said_what_to_give(repository: Path) -> None:
    git(repository, "tag", "other")
    git(repository, "tag", "v1.0.0")
    with pytest.raises(NoRelease, match=r"no tag v.*FROM=REF"):
        newest_tag(repository)


def test_the_newest_release_is_that_of_the_nearest_tag(repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "v1.0.0")
    commit(repository, "two")
    git(repository, "tag", "v1.1.0")
    commit(repository, "three")
    git(repository, "tag", "v1.2.0")
    assert newest_tag(repository) == "v1.1.0"
    assert [is_tag(repository, each) for each in ("v1.1.0", "HEAD", "v9")] == [True, False, False]
    (tmp_path / "trees" / ("0" * 12)).mkdir(parents=True)
    tmp_path /= "trees"
    old = unpacked(repository, "v1.1.0", tmp_path)
    assert (said_by(old), said_by(working_tree(repository))) == ("two", "three")
    assert unpacked(repository, "v1.1.0", tmp_path) == old
    assert [each.name for each in tmp_path.iterdir()] == [old.commit]


def test_a_version_that_git_does_not_know_is_named(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(NoRelease, match="v9"):
        unpacked(repository, "v9", tmp_path)
    (repository / LOCK).unlink()
    git(repository, "commit", "-qam", "no lock")
    git(repository, "tag", "bare")
    commit(repository, "two")
    with pytest.raises(NoRelease, match=f"bare has no {LOCK}"):
        unpacked(repository, "bare", tmp_path)


def test_a_version_is_not_upgraded_to_itself(repository: Path, tmp_path: Path) -> None:
    (repository / "word.py").write_text("")
    with pytest.raises(NoRelease, match="HEAD is the commit of the working tree itself"):
        unpacked(repository, "HEAD", tmp_path)


def test_a_tree_with_changes_is_told_apart(repository: Path) -> None:
    clean = working_tree(repository).commit
    (repository / "word.py").write_text("")
    assert working_tree(repository).commit == f"{clean}-dirty"


def test_a_change_of_a_tree_is_seen_also_where_it_had_some(repository: Path) -> None:
    (repository / "word.py").write_text("1")
    before = state_of(repository)
    assert state_of(repository) == before
    (repository / "word.py").write_text("2")
    assert state_of(repository) != before


@pytest.mark.parametrize(
    ("command", "options", "status", "word"),
    [
        (upgrade.main, ["--from", "no-such-version"], 69, "no-such-version"),
        (upgrade.main, ["--from", "HEAD", "-o", "no-such-folder/page.md"], 2, "there is no folder no-such-folder"),
        (upgrade.main, ["--from", "HEAD", "--keep", "tests"], 2, "tests exists"),
        (kills.main, ["-o", "no-such-folder/page.md"], 2, "there is no folder no-such-folder"),
        (kills.main, ["--keep", "tests"], 2, "tests exists"),
    ],
)
def test_a_command_refuses_what_it_cannot_play_before_it_begins(
    command: click.Command, options: list[str], status: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    done = CliRunner().invoke(command, options)
    assert (done.exit_code, word in done.stderr) == (status, True)
