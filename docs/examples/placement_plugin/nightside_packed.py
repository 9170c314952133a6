"""A placement policy that fills one replica before it uses the next, so that the others fall idle and can be stopped.

It never looks at prompts: what is gained in engines is lost in cache hits.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile

_FULL_AT = 8


class Packed(Layered):
    """Takes the busiest replica with fewer than `full_at` requests, and the nearest gateway once we have none free."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._full_at = int(config.policy_options.get("full_at", _FULL_AT))

    @staticmethod
    def check_options(options: Mapping[str, object]) -> None:
        for name, value in options.items():
            if name != "full_at":
                raise ValueError(f"{name} is not known; there is full_at")
            if not isinstance(value, int) or value < 1:
                raise ValueError("full_at should be a number of requests, 1 or more")

    def configure(self, config: PlacementConfig) -> None:
        super().configure(config)
        self._full_at = int(config.policy_options.get("full_at", _FULL_AT))

    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        loads = {slot: self.fleet.replica_load(slot) for slot in slots_of(mask)}
        with_room = [slot for slot in loads if loads[slot] < self._full_at]
        if not with_room:
            return Choice(self.fleet.least_loaded_replica(mask))
        return Choice(max(with_room, key=loads.__getitem__))

    def choose_peer(self, profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        return Choice(self.fleet.nearest_peer(mask, profile.model))
