"""How fast queues drain, and what that says to who has just come: whether it can have its first token in time, and if
not, when one like it could.

A rate is counted while somebody waits, and from those who waited: what is told rests on nothing else. It estimates, and
ends nobody.
"""

from __future__ import annotations

from typing import Final

from gateway.core.admission import WaitingRoom
from gateway.core.fair_queue import charge_of
from gateway.core.requests import RequestState
from gateway.core.value import value
from gateway.core.vocabulary import ModelName

_SECOND_NS: Final = 1_000_000_000
_WINDOW_NS: Final = 20 * _SECOND_NS
"""Of waiting: what is older counts half, and so on."""
_SEEN_MIN: Final = 8
"""Before so many have got through, nothing is known, and nobody is turned away."""
_MODELS_MAX: Final = 1024
_KEEPS: Final = 0.9


@value
class Lateness:
    """Why it is better turned away at once."""

    detail: str
    retry_after_ns: int
    """When one like it would be in time, if nobody else came."""


class _Drain:
    __slots__ = ("busy_ns", "count", "first_token_ns", "since_ns")

    def __init__(self) -> None:
        self.count = 0.0
        """Who waited and got through,"""
        self.busy_ns = 0.0
        """in this much time."""
        self.since_ns: int | None = None
        """Somebody has waited since then, or since the last one got through."""
        self.first_token_ns = 0.0


class Drains:
    """Of one gateway, by model."""

    def __init__(self) -> None:
        self._by_model: dict[ModelName, _Drain] = {}

    def _of(self, model: ModelName) -> _Drain:
        drain = self._by_model.get(model)
        if drain is None:
            if len(self._by_model) >= _MODELS_MAX:
                self._by_model.clear()
            drain = self._by_model[model] = _Drain()
        return drain

    def waits(self, model: ModelName, length: int, now_ns: int) -> None:
        """Somebody has come, and could not go at once; with it, so many wait."""
        drain = self._of(model)
        if drain.since_ns is None or length <= 1:
            drain.since_ns = now_ns

    def served(self, model: ModelName, length: int, now_ns: int) -> None:
        """Somebody who waited could go; so many still wait."""
        drain = self._by_model.get(model)
        if drain is None or drain.since_ns is None:
            return
        drain.busy_ns += now_ns - drain.since_ns
        drain.count += 1
        drain.since_ns = now_ns if length else None
        if drain.busy_ns > _WINDOW_NS:
            drain.busy_ns /= 2
            drain.count /= 2

    def first_token(self, model: ModelName, took_ns: int) -> None:
        """From the start of its leg."""
        drain = self._of(model)
        keeps = _KEEPS if drain.first_token_ns else 0.0
        drain.first_token_ns = keeps * drain.first_token_ns + (1 - keeps) * took_ns

    def rate(self, model: ModelName, now_ns: int) -> float | None:
        """A second; None: nothing is known yet."""
        drain = self._by_model.get(model)
        if drain is None or drain.count < _SEEN_MIN:
            return None
        busy_ns = drain.busy_ns + (0 if drain.since_ns is None else now_ns - drain.since_ns)
        return drain.count * _SECOND_NS / max(1.0, busy_ns)

    def rates(self, now_ns: int) -> dict[ModelName, float]:
        """Where one is known."""
        found = {model: self.rate(model, now_ns) for model in self._by_model}
        return {model: rate for model, rate in found.items() if rate is not None}

    def clears_ns(self, room: WaitingRoom, model: ModelName, now_ns: int) -> int:
        """How long until all who wait for the model will have gone; 0: nothing is known."""
        rate = self.rate(model, now_ns)
        return 0 if rate is None else int((room.length(model) + 1) * _SECOND_NS / rate)

    def lateness(
        self, room: WaitingRoom, request: RequestState, promised_ns: int | None, now_ns: int
    ) -> Lateness | None:
        """Of one that has come just now, and has to wait: will it be late by what its class was promised, or by its own
        deadline, where that is sooner than its patience ends? None: it may be in time, as far as is known."""
        within_ns = promised_ns
        if request.deadline_ns < request.queue_deadline_ns:
            own_ns = request.deadline_ns - now_ns
            within_ns = own_ns if promised_ns is None else min(promised_ns, own_ns)
        rate = None if within_ns is None else self.rate(request.profile.model, now_ns)
        if within_ns is None or rate is None:
            return None
        ahead = _ahead_of(room, request)
        wait_ns = int((ahead + 1) * _SECOND_NS / rate + self._of(request.profile.model).first_token_ns)
        if wait_ns <= within_ns:
            return None
        told = f"its first token would take {wait_ns // 1_000_000} ms: {ahead} are before it, {rate:.3g} get their turn"
        whose = f"{request.profile.service_class} was promised" if within_ns == promised_ns else "its client gives it"
        return Lateness(f"{told} a second; {whose} {within_ns // 1_000_000} ms", wait_ns - within_ns)


def _ahead_of(room: WaitingRoom, request: RequestState) -> int:
    """Whoever is served better; of one's own tenant all who came before; and of each other as many as have their turn
    meanwhile, by weight, as though all requests were of one size."""
    own = charge_of(request).account
    rank = request.request_class.service_rank
    alike: dict[str, list[float]] = {}
    ahead = 0
    for request_class, account, length in room.lines(request.profile.model):
        better = (rank - request_class.service_rank, account.priority - own.priority)
        if better > (0, 0):
            ahead += length
        elif better == (0, 0):
            known = alike.setdefault(account.name, [0.0, account.weight])
            known[0] += length
    mine = alike.pop(own.name, [1.0, own.weight])[0]
    turns = sum(min(length, mine * weight / own.weight) for length, weight in alike.values())
    return ahead + int(turns) + max(0, int(mine) - 1)
