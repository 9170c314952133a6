"""Base of the sections that features add to the region file. It is imported wherever the file is read, so a section
imports no edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gateway.core.vocabulary import PoolName, PoolSpec
from mesh.faults import FileFault


class WrittenFile(Protocol):
    """Parts of a region file that a section may be checked against."""

    @property
    def insecure(self) -> bool: ...

    @property
    def keeps_state(self) -> bool: ...

    def served_whole(self) -> set[tuple[str, str]]: ...

    def pool_specs(self) -> dict[PoolName, PoolSpec]: ...


class FeatureSection(Struct, frozen=True):
    """Section of one feature. Every hook does nothing unless the section overrides it."""

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:  # noqa: ARG002
        """Faults between keys that are valid by themselves."""
        yield from ()

    def secret_files(self) -> Iterator[Path]:
        """Files that hold keys or tokens."""
        yield from ()
