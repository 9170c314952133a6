"""Reads artifacts of expert locality (ELDR): plain arrays for comparing requests with decode workers by their experts,
with a version and a checksum.

The files hold no text of requests and no code. One that is damaged, of another version or too large is refused with a
reason.
"""

from __future__ import annotations

from pathlib import Path

from gateway.core.features.expert_locality.artifact import EldrArtifact, UnusableArtifact
from gateway.core.features.expert_locality.signature import Comparer
from mesh.state_files import StateFile, StateUnusable


def eldr_file(path: Path) -> StateFile[EldrArtifact]:
    return StateFile(path, "expert locality", 1, EldrArtifact)


def read_comparer(path: Path) -> Comparer:
    """Read an artifact and make its Comparer. Raises StateUnusable, also for a file that is not there."""
    artifact = read_eldr(path)
    try:
        return Comparer(artifact)
    except UnusableArtifact as error:
        raise StateUnusable(f"{path}: {error}") from error


def read_eldr(path: Path) -> EldrArtifact:
    """Read an artifact as written. Raises StateUnusable, also for a file that is not there."""
    artifact = eldr_file(path).read()
    if artifact is None:
        raise StateUnusable(f"{path}: there is no such file")
    return artifact
