"""Legs at a target that has fallen silent: taken back where their requests can go on elsewhere, else left alone.

Silence may be a slow network, so nothing is held against the target, and no request is risked: what only the silent
target can serve waits there for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.core.kernel.effects import TakeBackLeg
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.model_identity import needed_elsewhere
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.vocabulary import LegResult, Target

_RUNS = frozenset({Phase.RUNNING, Phase.ANSWERING})


class SilentTargets:
    """Takes back what can be saved from a silent target."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def take_back_legs(self, target: Target, detail: str) -> None:
        """Order the legs at a silent target to be taken back. Answers that have begun come first, so that their rests
        are placed before requests whose clients have nothing yet. O(open requests)."""
        legs = list(self._legs_at(target))
        legs.sort(key=_is_new)
        for request, leg in legs:
            may_append = self._may_append(request)
            if self._has_another_target(request, leg):
                order = TakeBackLeg(request.request_id, leg.attempt, leg.number, detail, may_append)
                self._core.effects.append(order)

    def _legs_at(self, target: Target) -> Iterator[tuple[RequestState, LegState]]:
        """Legs at the target of requests that may be tried again, each the only one of its attempt."""
        for request in self._core.requests.values():
            attempt = request.attempt
            if attempt is None or attempt.planner is not None or request.phase not in _RUNS:
                continue
            for leg in attempt.legs.values():
                if leg.target == target and not leg.is_stopping and self._may_move(request):
                    yield request, leg

    def _may_move(self, request: RequestState) -> bool:
        """Return true unless the request is bound to its target, its answer cannot be continued, or it was taken back
        as often as a request is tried: the request itself may be what silences targets."""
        if request.request_class.pinned is not None:
            return False
        if request.phase is Phase.ANSWERING and not self._may_append(request):
            return False
        ended = [leg.ended for leg in request.record.legs if leg.ended is not None]
        moves = sum(end.result is LegResult.TAKEN_BACK for end in ended)
        return moves + 1 < self._core.config.attempt.attempts_max

    def _may_append(self, request: RequestState) -> bool:
        return any(feature.may_append(request) for feature in self._core.hooks.may_append)

    def _has_another_target(self, request: RequestState, leg: LegState) -> bool:
        """Return true if another target that answers, full or not, could serve what is left of the request."""
        request_class = request.request_class
        appends = request_class.appends or request.phase is Phase.ANSWERING
        identity = needed_elsewhere(self._core, request, leg)
        return self._core.placer.serves_now(replace(request_class, appends=appends, identity=identity))


def _is_new(each: tuple[RequestState, LegState]) -> bool:
    request, _ = each
    return request.phase is Phase.RUNNING and not (request.has_begun or request.profile.appends)
