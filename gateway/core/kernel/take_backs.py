"""Legs at a target that has fallen silent, or will soon be gone: taken back if their requests can begin elsewhere at
once, else left alone.

Silence may be a slow network, and an announced end may be called off, so nothing is held against the target, and no
request is put at risk for it: a request for which no other target has room stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gateway.core.kernel.effects import TakeBackLeg
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.model_identity import needed_elsewhere
from gateway.core.kernel.reevaluation import Reevaluation
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.kernel.targets import LegKey
from gateway.core.vocabulary import LegResult, LegRole, ServiceClass, Target

_RUNS = frozenset({Phase.RUNNING, Phase.ANSWERING})
_INTERACTIVE: Final = ServiceClass.INTERACTIVE


class TakeBacks:
    """Takes back what can be saved from a target. Each leg is judged once for each call."""

    def __init__(self, core: Kernel, reevaluation: Reevaluation) -> None:
        self._core = core
        self._reevaluation = reevaluation
        self._promised: dict[LegKey, Target] = {}
        """Target that has room for each leg that was ordered to be taken back and has not ended. Legs that have ended
        are forgotten at the next call."""

    def from_silent(self, target: Target, detail: str) -> None:
        """Order the legs at a silent target to be taken back, as many as other targets have room for. Answers that have
        begun come first. O(open requests + classes x available targets)."""
        self._take_back(target, detail, [each for each in self._legs_at(target) if self._may_move_again(each[0])])

    def from_leaving(self, target: Target, detail: str, *, only_yielding: bool) -> None:
        """Order the legs at a target that will be gone to be taken back, as `from_silent` does. `only_yielding`: those
        of interactive requests run on."""
        legs = self._legs_at(target)
        if only_yielding:
            legs = (each for each in legs if each[0].profile.service_class is not _INTERACTIVE)
        self._take_back(target, detail, list(legs))

    def _take_back(self, target: Target, detail: str, legs: list[tuple[RequestState, LegState]]) -> None:
        if not legs:
            return
        legs.sort(key=_is_new)
        self._promised = {key: at for key, at in self._promised.items() if self._lives_elsewhere(key, target)}
        promised = Counter(self._promised.values())
        rooms: dict[RequestClass, dict[Target, int]] = {}
        for request, leg in legs:
            wanted = self._class_elsewhere(request, leg)
            if wanted is None:
                continue
            if wanted not in rooms:
                rooms[wanted] = self._core.placer.rooms(wanted)
            free = next((each for each, room in rooms[wanted].items() if room > promised[each]), None)
            if free is not None:
                promised[free] += 1
                self._promised[request.request_id, leg.attempt, leg.number] = free
                self._order(request, leg, detail, wanted)

    def _order(self, request: RequestState, leg: LegState, detail: str, wanted: RequestClass) -> None:
        identity = "" if wanted.identity is None else wanted.identity.name
        may_append = self._may_append(request)
        self._core.effects.append(
            TakeBackLeg(request.request_id, leg.attempt, leg.number, detail, may_append, identity)
        )

    def _lives_elsewhere(self, key: LegKey, target: Target) -> bool:
        """Return true if the leg has not ended and is not at the target."""
        request_id, number, leg_number = key
        attempt = self._core.attempt_of(request_id, number)
        leg = None if attempt is None else attempt.legs.get(leg_number)
        return leg is not None and leg.target != target

    def _legs_at(self, target: Target) -> Iterator[tuple[RequestState, LegState]]:
        """Legs at the target of requests that may be tried again, each the only one of its attempt."""
        for request in self._core.requests.values():
            attempt = request.attempt
            if attempt is None or len(attempt.legs) != 1 or request.phase not in _RUNS:
                continue
            (leg,) = attempt.legs.values()
            is_whole = leg.role is not LegRole.PREFILL
            if leg.target == target and is_whole and not leg.is_stopping and self._may_move(request):
                yield request, leg

    def _may_move(self, request: RequestState) -> bool:
        """Return true unless the request is bound to its target, or its answer cannot be continued."""
        if request.request_class.pinned is not None:
            return False
        return request.phase is not Phase.ANSWERING or self._may_append(request)

    def _may_move_again(self, request: RequestState) -> bool:
        """Return true unless the request was taken back as often as a request is tried: the request itself may be what
        silences targets."""
        ended = [leg.ended for leg in request.record.legs if leg.ended is not None]
        moves = sum(end.result is LegResult.TAKEN_BACK for end in ended)
        return moves + 1 < self._core.config.attempt.attempts_max

    def _may_append(self, request: RequestState) -> bool:
        return any(feature.may_append(request) for feature in self._core.hooks.may_append)

    def _class_elsewhere(self, request: RequestState, leg: LegState) -> RequestClass | None:
        """Class that what is left of the request would have now; None: the rules in force would end it."""
        profile = request.profile
        appends = profile.appends or request.phase is Phase.ANSWERING
        rest = replace(profile, appends=appends, identity=needed_elsewhere(self._core, request, leg))
        return self._reevaluation.class_in_force(request, rest)


def _is_new(each: tuple[RequestState, LegState]) -> bool:
    request, _ = each
    return request.phase is Phase.RUNNING and not (request.has_begun or request.profile.appends)
