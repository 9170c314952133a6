"""Leaving's own event."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import ReplicaId


class ReplicaLeaves(FeatureEvent, frozen=True):
    """Announcement that an own replica's engine will be gone, or that this is called off."""

    replica_id: ReplicaId
    leave_by_ns: int | None
    """Time by which it is gone, on the clock of `now_ns`; None: it stays."""
