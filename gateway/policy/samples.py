"""Sample residency policies: beside this module in an installed package, else in the source tree. It finds and copies
them, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

_INSTALLED = Path(__file__).parent / "samples"
_TABLE = "regions.yaml"
"""Operators' table of regions, which each of the files names."""
_IN_THE_TREE = Path(__file__).parents[2] / "policies"


def samples() -> Mapping[str, Path]:
    """Sample files by region, in alphabetical order."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_THE_TREE
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.name != _TABLE}


def copy_samples(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Copy the files and their tables into `folder`, which is made if need be, and return the copies. A file that is
    there and differs is never replaced. Raises FileExistsError, before anything is written, and OSError."""
    sources = list(sources)
    tables = dict.fromkeys(source.with_name(_TABLE) for source in sources)
    wanted = {folder / source.name: source.read_bytes() for source in (*sources, *tables)}
    if differing := [path for path, content in wanted.items() if path.exists() and path.read_bytes() != content]:
        raise FileExistsError(f"{', '.join(map(str, differing))}: there already, and different")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in wanted.items():
        path.write_bytes(content)
    return list(wanted)
