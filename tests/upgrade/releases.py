"""Trees of the project that a mesh runs from: the working tree, and an earlier version, unpacked from git."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

TAGS = "v*"
LOCK = "requirements.lock"


class NoRelease(Exception):
    """The earlier version cannot be had; the message says what to give."""


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
    """Newest release from which HEAD descends. Raises NoRelease."""
    try:
        return _git(root, "describe", "--tags", "--match", TAGS, "--abbrev=0")
    except NoRelease as error:
        raise NoRelease(f"no tag {TAGS} leads to this commit: name a version with FROM=REF ({error})") from error


def unpacked(root: Path, ref: str, folder: Path) -> Release:
    """Tree of the version that `ref` names, beneath `folder`; one from before is used again. Generated protobuf code is
    part of it. Raises NoRelease."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")[:12]
    tree = folder / commit
    if not tree.is_dir():
        archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True).stdout
        part = folder / f"{commit}.part"
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(part, filter="data")
        part.rename(tree)
    return Release(ref, commit, tree.resolve())


def working_tree(root: Path) -> Release:
    return Release(
        "the working tree", _git(root, "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"), root
    )


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
