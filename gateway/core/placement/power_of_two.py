"""Baseline that draws two targets at random, possibly the same one twice, and takes the less loaded. It never looks at
other targets."""

from __future__ import annotations

from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class PowerOfTwo(Layered):
    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        fleet = self.fleet
        return Choice(min(fleet.any_of(mask), fleet.any_of(mask), key=fleet.replica_load))

    def choose_peer(self, profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        pair = 1 << self.fleet.any_of(mask) | 1 << self.fleet.any_of(mask)
        return Choice(self.fleet.least_loaded_peer(pair, profile.model))
