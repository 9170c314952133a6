"""Lockdown: the operator's stop for all forwarding. It is in force at once, kept over a restart, and needs only this
gateway.

A file that cannot be read may have said that forwarding is stopped, so the gateway then starts locked down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.events import Event
from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.vocabulary import GatewayId
from mesh.clock import Clock
from mesh.operators import ANY_OPERATOR, Operator, told_of
from mesh.state_files import StateFile, StateUnusable
from mesh.threads import finish_in_thread

REASON_LENGTH_MAX = 500
_KIND = "lockdown"
_VERSION = 1


class LockdownOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /admin/lockdown`."""

    active: bool
    cut: bool = False
    """Also end streams that cross gateways."""
    reason: str = ""


class LockdownState(Struct, frozen=True):
    """State that the last command set."""

    active: bool
    reason: str = ""
    since: str = ""
    """Wall time of the command; empty where there was none."""
    cut: bool = False
    """The lockdown ended streams between gateways as well."""


class LockdownAnswer(LockdownState, frozen=True, kw_only=True):
    """Answer to the operator's command."""

    is_kept: bool
    """The state survives a restart."""
    problem: str = ""
    """Reason why the state does not survive a restart; empty where it does."""


class LockdownSwitch:
    """Takes lockdown commands, passes them on to the core, and stores the last one."""

    def __init__(
        self,
        gateway_id: GatewayId,
        folder: Path | None,
        *,
        submit: Callable[[Event], None],
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self.state = LockdownState(active=False)
        self._file = None if folder is None else lockdown_file(folder, gateway_id)
        self._submit = submit
        self._clock = clock
        self._log = log
        self._one_writer = threading.Lock()

    def restore(self) -> None:
        """Restore the stored state before the gateway serves. A later call takes over what another process of this
        gateway stored meanwhile."""
        if self._file is None:
            return
        before = self.state
        try:
            self.state = self._file.read() or self.state
        except StateUnusable as error:
            self.state = LockdownState(True, f"what was ordered before the restart is not known: {error}")
        now = self.state
        if before.active and not now.active:
            self._submit(LockdownChanged(active=False))
        if now.active and (not before.active or (now.cut and now != before)):
            self._submit(LockdownChanged(active=True, cut=now.cut))
            self._log.critical(
                "lockdown_restored",
                reason=self.state.reason,
                since=self.state.since,
            )

    async def order(self, *, active: bool, cut: bool, reason: str, by: Operator = ANY_OPERATOR) -> LockdownAnswer:
        """Put a command into force at once and store it, even if the caller is cancelled; the answer says whether it is
        stored."""
        self.state = LockdownState(active, reason[:REASON_LENGTH_MAX], self._clock.wall_time(), cut)
        self._submit(LockdownChanged(active, cut))
        told = {"reason": self.state.reason, **told_of(by)}
        if active:
            self._log.critical("lockdown_activated", cut=cut, **told)
        else:
            self._log.warning("lockdown_released", **told)
        problem = await finish_in_thread(self._keep)
        return LockdownAnswer(active, self.state.reason, self.state.since, cut, is_kept=not problem, problem=problem)

    def describe(self) -> dict[str, object]:
        return {"active": self.state.active, "reason": self.state.reason, "since": self.state.since}

    def _keep(self) -> str:
        """Store the state, and return the failure or "". The failure is logged here, since the caller may have been
        cancelled."""
        problem = self._write()
        if problem:
            self._log.error("lockdown_not_persisted", reason=problem)
        return problem

    def _write(self) -> str:
        """Write the current state, so that the newest command wins whichever thread comes last; return the failure or
        ""."""
        if self._file is None:
            return "no state.folder is configured"
        with self._one_writer:
            try:
                self._file.write(self.state)
            except OSError as error:
                return str(error)
        return ""


def lockdown_file(folder: Path, gateway_id: GatewayId) -> StateFile[LockdownState]:
    return StateFile(folder / f"{gateway_id}.lockdown.json", _KIND, _VERSION, LockdownState)
