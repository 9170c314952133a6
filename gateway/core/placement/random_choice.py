"""Baseline that picks any target at random. It looks at no load and no prompt."""

from __future__ import annotations

from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice
from gateway.core.vocabulary import RequestProfile


class RandomChoice(Layered):
    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        return Choice(self.fleet.any_of(mask))

    def choose_peer(self, _profile: RequestProfile, mask: int, _is_remote: bool, /) -> Choice:
        return Choice(self.fleet.any_of(mask))
