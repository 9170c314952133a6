"""Lockdown's own event."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent


class LockdownChanged(FeatureEvent, frozen=True):
    """An operator stops all forwarding, in both directions, or allows it again.

    Forwards without a first token come back at once; with `cut`, streams that cross gateways end as well.
    """

    active: bool
    cut: bool = False
