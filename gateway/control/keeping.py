"""Keeps the last accepted snapshot on disk, and returns it after a restart. It judges no snapshot: its caller checks
again if the snapshot can still be served.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Never

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.vocabulary import GatewayId
from mesh.control.vocabulary import ControlSnapshot
from mesh.state_files import StateFile, StateUnusable
from mesh.threads import finish_in_thread

_KIND = "control snapshot"
_VERSION = 1
_AGAIN_S = 30.0
"""Seconds until a disk that failed is tried again, unless there is a newer snapshot."""


class KeptSnapshot(Struct, frozen=True):
    snapshot: ControlSnapshot
    taken_ns: int
    """Wall-clock time, which is valid after a restart."""


class SnapshotKeeper:
    """Keeper of one file, replaced whole. Only the newest snapshot matters, so a slow disk skips those in between."""

    def __init__(self, folder: Path | None, gateway_id: GatewayId, log: FilteringBoundLogger) -> None:
        self.fault = "" if folder is not None else "no state.folder is configured"
        """Reason why the newest snapshot would be missing after a restart; empty if it would not."""
        self._file = None if folder is None else snapshot_file(folder, gateway_id)
        self._log = log
        self._unwritten: KeptSnapshot | None = None
        self._changed = asyncio.Event()

    def restore(self) -> KeptSnapshot | None:
        """Snapshot kept last; None where there is none, or none that can be trusted."""
        if self._file is None:
            return None
        try:
            return self._file.read()
        except StateUnusable as error:
            self.refuse(str(error))
            return None

    def refuse(self, why: str) -> None:
        """Record that the kept snapshot cannot be used."""
        self.fault = why
        self._log.error("cached_snapshot_unusable", reason=why)

    def keep(self, kept: KeptSnapshot) -> None:
        """Keep a snapshot soon, where there is a folder for it."""
        if self._file is not None:
            self._unwritten = kept
            self._changed.set()

    async def run(self) -> Never:
        """Write each new snapshot, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._unwritten is not None:
                await self._write(self._unwritten)

    async def _write(self, kept: KeptSnapshot) -> None:
        problem = await finish_in_thread(lambda: self._problem_with(kept))
        if problem and problem != self.fault:
            self._log.error("snapshot_not_persisted", reason=problem)
        self.fault = problem
        if problem:
            await self._pause()
        elif self._unwritten is kept:
            self._unwritten = None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _problem_with(self, kept: KeptSnapshot) -> str:
        assert self._file is not None, "there is nothing to write without a file"
        try:
            self._file.write(kept)
        except OSError as error:
            return str(error)
        return ""


def snapshot_file(folder: Path, gateway_id: GatewayId) -> StateFile[KeptSnapshot]:
    return StateFile(folder / f"{gateway_id}.control.json", _KIND, _VERSION, KeptSnapshot)
