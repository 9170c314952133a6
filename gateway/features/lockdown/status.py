"""Lockdown in `nightside gateway status`."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.features.status import StatusView, because
from mesh.problems import Problem


class LockdownView(StatusView, frozen=True):
    """Operator's order that stops forwarding."""

    active: bool
    reason: str
    since: str

    def grave_problems(self) -> Iterator[Problem]:
        if self.active:
            text = f"lockdown since {self.since}{because(self.reason or 'no reason given')}"
            yield Problem(text, "lockdown", runbook="NightsideLockdown")
