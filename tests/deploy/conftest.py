"""Fixtures of the deployment checks.

`make check-deploy` runs these checks; tools that they need are required, and no check is skipped for lack of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.programs import Emulator, ministack
from tests.deploy.terraforming import Terraform, copied, mirror_of_stand_ins, schemas, types_used


class Stacks:
    """Folders of the tree, each initialised once."""

    def __init__(self, tree: Path, config: Path) -> None:
        self.tree, self.config = tree, config
        self._ready: dict[str, Terraform] = {}

    def __call__(self, name: str) -> Terraform:
        if name not in self._ready:
            terraform = Terraform(self.tree / name, self.config)
            terraform("init").ok()
            self._ready[name] = terraform
        return self._ready[name]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of terraform/ to run Terraform in."""
    return copied(tmp_path_factory.mktemp("tree") / "terraform")


@pytest.fixture(scope="session")
def stand_ins(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config that makes Terraform find the stand-in providers, with the schemas of all types that the tree uses."""
    return mirror_of_stand_ins(tmp_path_factory.mktemp("stand-ins"), schemas(types_used(tree)))


@pytest.fixture(scope="session")
def stack(tree: Path, stand_ins: Path) -> Stacks:
    return Stacks(tree, stand_ins)


@pytest.fixture(scope="session")
def running_ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    emulator = ministack(tmp_path_factory.mktemp("ministack"))
    emulator.begin()
    yield emulator
    emulator.kill()
