"""Packages with placement policies, laid out as an installer would."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
from gateway.core.kernel.bits import lowest_slot
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice


class First(Layered):
    def choose_replica(self, profile, mask, /):
        return Choice(lowest_slot(mask))

    def choose_peer(self, profile, mask, is_remote, /):
        return Choice(lowest_slot(mask))
"""


def put(folder: Path, package: str, *, name: str, version: str = "1.0", source: str = SOURCE) -> None:
    """Write a package of one module, whose class `First` is the policy `name`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[nightside.placement]\n{name} = {package}:First\n")
