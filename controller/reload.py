"""Reload of the controller's own file at run time. A change that needs a restart is refused, by its key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from controller.config import ControllerFile, read_controller_file
from controller.state_manager import Naming
from mesh.faults import ConfigError, FileError, FileFault
from mesh.reloader import ReloadRefused
from mesh.settings import changed_keys

LIVE_KEYS = frozenset({"decisions", "probes", "recovery", "naming"})
"""Sections that take effect while the controller runs. All others wait for a restart."""


class FilePart:
    def __init__(self, file: ControllerFile, apply: Callable[[ControllerFile], None]) -> None:
        """`apply` puts a whole valid file in force, at once. It may raise OSError, and has then changed nothing."""
        self._file = file
        self._apply = apply

    def files(self) -> list[Path]:
        return [self._file.path] if self._file.sections.reload.controller_file else []

    async def reload(self) -> None:
        """Reload the file. Raises ReloadRefused, and nothing has changed then."""
        try:
            file = await asyncio.to_thread(read_controller_file, self._file.path)
            if at_rest := changed_at_rest(self._file, file):
                faults = [FileFault(key, "cannot change while the controller runs") for key in at_rest]
                raise FileError(file.path, file.source.located(faults))
            self._apply(file)
        except (ConfigError, OSError) as error:
            raise ReloadRefused(str(error)) from error
        self._file = file


def changed_at_rest(old: ControllerFile, new: ControllerFile) -> list[str]:
    """Return the paths of the keys that differ and cannot be changed at run time."""
    changed = changed_keys(old.as_document(), new.as_document())
    return [key for key in changed if key.split(".")[0] not in LIVE_KEYS]


def naming_of(file: ControllerFile) -> Naming:
    naming = file.naming
    return Naming(naming.zone_name, naming.servers, naming.region_networks, naming.port, tls=naming.tls)
