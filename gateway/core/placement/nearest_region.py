"""Baseline that places like a multi-cluster gateway: own replicas in turn, the nearest region with room once those are
full, and own replicas again if no region has room. It never lets a request wait for room."""

from __future__ import annotations

from gateway.core.placement.policy import Choice
from gateway.core.placement.round_robin import RoundRobin
from gateway.core.vocabulary import RequestProfile


class NearestRegion(RoundRobin):
    def falls_back_to_full(self) -> bool:
        return True

    def choose_peer(self, profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        return Choice(self.fleet.nearest_peer(mask, profile.model))
