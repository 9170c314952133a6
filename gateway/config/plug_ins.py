"""Finds plug-ins that other packages provide under the gateway's entry point groups. It loads only those named."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from msgspec import Struct


class PlugInUnusable(Exception):
    """Plug-in is missing, ambiguous or invalid; the message says why."""


class FoundPlugIn(Struct, frozen=True):
    """Imported object of an entry point, not validated yet."""

    brought: object
    entry_point: EntryPoint

    @property
    def version(self) -> str:
        """Version of the package that provides it."""
        return self.entry_point.dist.version if self.entry_point.dist else "unknown"

    def unusable(self, fault: str) -> PlugInUnusable:
        return PlugInUnusable(f"{self.entry_point.name!r} of {_package_of(self.entry_point)} {fault}")


def load_plug_in(group: str, name: str, ours: Iterable[str]) -> FoundPlugIn:
    """Import a plug-in. `ours` are the built-in names, listed in the error. Raises PlugInUnusable."""
    found = list(entry_points(group=group, name=name))
    if not found:
        names = [*ours, *sorted({each.name for each in entry_points(group=group)})]
        raise PlugInUnusable(f"{name!r} is none of {', '.join(names)}")
    if len(found) > 1:
        raise PlugInUnusable(f"{name!r} is brought by {' and '.join(map(_package_of, found))}")
    (entry_point,) = found
    try:
        return FoundPlugIn(entry_point.load(), entry_point)
    except Exception as error:  # any exception of the plug-in's module
        raise PlugInUnusable(
            f"{entry_point.name!r} cannot be loaded from {_package_of(entry_point)}: {type(error).__name__}: {error}"
        ) from error


def _package_of(entry_point: EntryPoint) -> str:
    return f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else entry_point.value
