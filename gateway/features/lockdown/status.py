"""Lockdown in `nightside gateway status`."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.features.status import StatusView, because


class LockdownView(StatusView, frozen=True):
    """Operator's order that stops forwarding."""

    active: bool
    reason: str
    since: str

    def grave_complaints(self) -> Iterator[str]:
        if self.active:
            yield f"lockdown since {self.since}{because(self.reason or 'no reason given')}"
