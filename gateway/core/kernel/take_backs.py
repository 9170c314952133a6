"""Legs at a target that has fallen silent, or will soon be gone: taken back if their requests can begin elsewhere at
once, else left alone.

Silence may be a slow network, and an announced end may be called off, so nothing is held against the target, and no
request is put at risk for it: a request for which no other target has room stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.core.kernel.effects import TakeBackLeg
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.model_identity import needed_elsewhere
from gateway.core.kernel.reevaluation import Reevaluation
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.kernel.targets import LegKey
from gateway.core.vocabulary import LegResult, LegRole, Target

_RUNS = frozenset({Phase.RUNNING, Phase.ANSWERING})
_PROMISED_NS: Final = 200_000_000
"""Time after which a leg that has not ended was kept by its request's side, and no room is kept for it."""
_MISSES_MAX: Final = 256
"""Legs at targets that leave that are found no room for before the rest is left to the next look, which begins with
it."""


class _Judgement(NamedTuple):
    """Last judgement of a leg that has not ended."""

    target: Target | None
    """Target that had room for it; None: none had, and it was not ordered to be taken back."""
    at_ns: int

    def keeps_room(self, now_ns: int) -> bool:
        return self.target is not None and now_ns < self.at_ns + _PROMISED_NS


class TakeBacks:
    """Takes back what can be saved from targets. Each leg is judged once for each call."""

    def __init__(self, core: Kernel, reevaluation: Reevaluation) -> None:
        self._core = core
        self._reevaluation = reevaluation
        self._judged: dict[LegKey, _Judgement] = {}
        """Last judgement of legs. Those that have ended are forgotten at the next call."""

    def from_silent(self, target: Target, detail: str, now_ns: int) -> None:
        """Order the legs at a silent target to be taken back, as many as other targets have room for. Answers that have
        begun come first. O(open requests + classes x available targets)."""
        self._judged = {key: each for key, each in self._judged.items() if self._lives_elsewhere(key, target)}
        legs = [each for each in self._legs_at(target) if self._may_move_again(each[0])]
        legs.sort(key=_is_new)
        self._take_back(legs, {target: detail}, now_ns)

    def from_leaving(
        self, legs: list[tuple[RequestState, LegState]], details: Mapping[Target, str], now_ns: int
    ) -> None:
        """Order legs at targets that will be gone to be taken back, as `from_silent` does, as often as this is called.
        Legs that their requests' sides have kept come last, so that others find the room, and before them those that
        none was found for the last time. O(legs + classes x available targets)."""
        self._judged = {key: each for key, each in self._judged.items() if self._leg_of(key) is not None}
        legs = sorted(legs, key=self._urgency_of)
        self._take_back((each for each in legs if self._is_due(each, now_ns)), details, now_ns, misses_max=_MISSES_MAX)

    def _take_back(
        self,
        legs: Iterable[tuple[RequestState, LegState]],
        details: Mapping[Target, str],
        now_ns: int,
        *,
        misses_max: int | None = None,
    ) -> None:
        promised = Counter(each.target for each in self._judged.values() if each.keeps_room(now_ns))
        rooms: dict[RequestClass, dict[Target, int]] = {}
        misses = 0
        for request, leg in legs:
            key, free = _key_of(request, leg), None
            wanted = self._class_elsewhere(request, leg)
            if wanted is not None:
                if wanted not in rooms:
                    rooms[wanted] = self._core.placer.rooms(wanted)
                free = next((each for each, room in rooms[wanted].items() if room > promised[each]), None)
            if wanted is not None and free is not None:
                promised[free] += 1
                self._judged[key] = _Judgement(free, now_ns)
                self._order(request, leg, details[leg.target], wanted)
                continue
            before = self._judged.get(key)
            if before is None or before.target is None:
                self._judged[key] = _Judgement(None, now_ns)
            misses += 1
            if misses == misses_max:
                break

    def _order(self, request: RequestState, leg: LegState, detail: str, wanted: RequestClass) -> None:
        identity = "" if wanted.identity is None else wanted.identity.name
        may_append = self._may_append(request)
        self._core.effects.append(
            TakeBackLeg(request.request_id, leg.attempt, leg.number, detail, may_append, identity)
        )

    def _urgency_of(self, each: tuple[RequestState, LegState]) -> tuple[bool, int, bool]:
        """Sort key of a leg: whether it was ordered to be taken back before, when it was judged, and whether its client
        has nothing yet."""
        judged = self._judged.get(_key_of(*each))
        if judged is None:
            return False, -1, _is_new(each)
        return judged.target is not None, judged.at_ns, _is_new(each)

    def _is_due(self, each: tuple[RequestState, LegState], now_ns: int) -> bool:
        """Return true for a leg that may move and has not just been ordered to."""
        judged = self._judged.get(_key_of(*each))
        return (judged is None or not judged.keeps_room(now_ns)) and self._is_movable(*each)

    def _lives_elsewhere(self, key: LegKey, target: Target) -> bool:
        """Return true if the leg has not ended and is not at the target."""
        leg = self._leg_of(key)
        return leg is not None and leg.target != target

    def _leg_of(self, key: LegKey) -> LegState | None:
        """Leg that has not ended; None if it has."""
        request_id, number, leg_number = key
        attempt = self._core.attempt_of(request_id, number)
        return None if attempt is None else attempt.legs.get(leg_number)

    def _legs_at(self, target: Target) -> Iterator[tuple[RequestState, LegState]]:
        """Legs at the target of requests that may be tried again, each the only one of its attempt."""
        for request in self._core.requests.values():
            attempt = request.attempt
            if attempt is None or len(attempt.legs) != 1:
                continue
            (leg,) = attempt.legs.values()
            if leg.target == target and self._is_movable(request, leg):
                yield request, leg

    def _is_movable(self, request: RequestState, leg: LegState) -> bool:
        """Return true for the only leg of a request that may be tried again."""
        attempt = request.attempt
        if attempt is None or len(attempt.legs) != 1 or request.phase not in _RUNS:
            return False
        return leg.role is not LegRole.PREFILL and not leg.is_stopping and self._may_move(request)

    def _may_move(self, request: RequestState) -> bool:
        """Return true unless the request is bound to its target, or its answer cannot be continued."""
        if request.request_class.pinned is not None:
            return False
        return request.phase is not Phase.ANSWERING or self._may_append(request)

    def _may_move_again(self, request: RequestState) -> bool:
        """Return true unless the request was taken back as often as a request is tried: the request itself may be what
        silences targets."""
        ended = [leg.ended for leg in request.record.legs if leg.ended is not None and leg.gave_way_ns is None]
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


def _key_of(request: RequestState, leg: LegState) -> LegKey:
    return request.request_id, leg.attempt, leg.number


def _is_new(each: tuple[RequestState, LegState]) -> bool:
    request, _ = each
    return request.phase is Phase.RUNNING and not (request.has_begun or request.profile.appends)
