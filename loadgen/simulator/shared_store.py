"""Store of simulated controllers, and the right to write there: a controller that was deposed cannot write.

It holds what the controller that has taken it writes. It decides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from msgspec.structs import replace

from controller.core.vocabulary import GatewayEntry, ReplicaEntry
from controller.store.lease_watch import LeaseMark
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, RegionName, ReplicaId


@dataclass(slots=True)
class KeptDocument:
    """State that outlives a process."""

    term: int = 0
    revision: int = 0
    gateways: dict[GatewayId, GatewayEntry] = field(default_factory=dict)
    replicas: dict[ReplicaId, ReplicaEntry] = field(default_factory=dict)
    owners_version: int = 0
    owners: dict[ReplicaId, GatewayId] = field(default_factory=dict)
    policies: dict[RegionName, ResidencyPolicy] = field(default_factory=dict)
    down: set[GatewayId] = field(default_factory=set)


class SharedStore:
    """Store of one or two controllers."""

    def __init__(self) -> None:
        self.kept = KeptDocument()
        self.mark = LeaseMark(0, "", 0)

    def copy(self) -> KeptDocument:
        """Copy of the present state, from which a process continues."""
        return deepcopy(self.kept)

    def take(self, seen: LeaseMark, key: str) -> bool:
        """Take the store for a new term, unless it was renewed or taken since `seen` was read."""
        if seen != self.mark:
            return False
        self.kept.term += 1
        self.mark = LeaseMark(self.kept.term, key, seen.renewals + 1)
        return True

    def renew(self, key: str) -> bool:
        if not self.is_held(key):
            return False
        self.mark = replace(self.mark, renewals=self.mark.renewals + 1)
        return True

    def write(self, key: str, change: Callable[[KeptDocument], None]) -> bool:
        """Apply a change as a whole; False, and no change, if another process has the store."""
        if not self.is_held(key):
            return False
        change(self.kept)
        self.mark = replace(self.mark, token=self.kept.term, renewals=self.mark.renewals + 1)
        return True

    def is_held(self, key: str) -> bool:
        return self.mark.key == key

    def lose(self) -> None:
        """Lose the whole state."""
        self.kept = KeptDocument()
        self.mark = LeaseMark(0, "", 0)
