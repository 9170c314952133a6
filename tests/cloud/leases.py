"""Leases of a chosen term and duration."""

from __future__ import annotations

from controller.lease import Lease
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


def leading(token: int = 1, *, for_s: float | None = None) -> Lease:
    """Lease of a leader: without end, or for `for_s` seconds."""
    clock = Clock()
    return Lease(clock, token, None if for_s is None else clock.boot_ns() + round(for_s * _SECOND_NS))
