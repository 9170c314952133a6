"""Lockdown in `nightside gateway status`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gateway.features.status import StatusView, because
from mesh.problems import Problem


class LockdownView(StatusView, frozen=True):
    """Operator's order that stops forwarding."""

    active: bool
    reason: str
    since: str

    def grave_problems(self) -> Iterator[Problem]:
        if self.active:
            text = f"lockdown{because(self.reason or 'no reason given')}"
            since_ms = round(datetime.fromisoformat(self.since).timestamp() * 1000) if self.since else None
            yield Problem(text, "lockdown", runbook="NightsideLockdown", since_ms=since_ms)
