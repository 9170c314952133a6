"""Baseline that picks the least loaded target. It never looks at earlier prompts."""

from __future__ import annotations

from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class LeastLoad(Layered):
    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        return Choice(self.fleet.least_loaded_replica(mask))

    def choose_peer(self, profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        return Choice(self.fleet.least_loaded_peer(mask, profile.model))
