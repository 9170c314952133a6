"""Trees of the project that a mesh runs from: the working tree, and an earlier version, unpacked from git."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import click

TAGS = "v*"
LOCK = "requirements.lock"


class NoRelease(click.ClickException):
    """The earlier version cannot be had; the message says what to give."""

    exit_code = os.EX_UNAVAILABLE


@dataclass(frozen=True)
class Release:
    """One version, as a folder that holds its sources."""

    name: str
    commit: str
    tree: Path

    @property
    def runner(self) -> tuple[str, ...]:
        """Begin of a command line that runs a Python module of this tree."""
        env = shutil.which("env")
        assert env is not None, "every system that runs make has it"
        return (env, "-C", str(self.tree), sys.executable, "-m")


def newest_tag(root: Path) -> str:
    """Newest release before HEAD, from which it descends. Raises NoRelease."""
    try:
        return _git(root, "describe", "--tags", "--match", TAGS, "--abbrev=0", "HEAD^")
    except NoRelease as error:
        raise NoRelease(
            f"there is no release to upgrade from yet (no tag {TAGS} leads to this commit): give one with FROM=REF"
        ) from error


def is_tag(root: Path, ref: str) -> bool:
    try:
        return bool(_git(root, "rev-parse", "--verify", "--quiet", f"refs/tags/{ref}"))
    except NoRelease:
        return False


def unpacked(root: Path, ref: str, folder: Path) -> Release:
    """Tree of the version that `ref` names, beneath `folder`; one from before is used again, and others are removed.
    Generated protobuf code is part of it. Raises NoRelease."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")[:12]
    if commit == _git(root, "rev-parse", "HEAD")[:12]:
        raise NoRelease(f"{ref} is the commit of the working tree itself")
    tree = folder / commit
    for other in folder.iterdir():
        if re.fullmatch(r"[0-9a-f]{12}(\.part)?", other.name) and other != tree:
            shutil.rmtree(other)
    if not tree.is_dir():
        archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True).stdout
        part = folder / f"{commit}.part"
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(part, filter="data")
        part.rename(tree)
    if not (tree / LOCK).is_file():
        raise NoRelease(f"{ref} has no {LOCK}")
    return Release(ref, commit, tree.resolve())


def working_tree(root: Path) -> Release:
    return Release(
        "the working tree", _git(root, "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"), root
    )


def state_of(root: Path) -> str:
    """State of a working tree, which differs after a commit or a change of a file that git knows."""
    return "\n".join(_git(root, *each) for each in (("rev-parse", "HEAD"), ("status", "--porcelain"), ("diff", "HEAD")))


def other_pins(old: str, new: str) -> list[str]:
    """Packages that the locks of two versions pin differently, with both versions; a dash where one has none."""
    before, after = _pins(old), _pins(new)
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{name} {before.get(name, '–')} → {after.get(name, '–')}" for name in names]


def _pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, flags=re.MULTILINE))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise NoRelease(f"git {' '.join(arguments)}: {done.stderr.strip() or 'there is none'}")
    return done.stdout.strip()
