"""Placement of waiting requests: in which order they are looked at, and what follows from the placer's choice."""

from __future__ import annotations

from gateway.core.kernel.bits import next_slot_from, slots_of
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.pools import PoolFit
from gateway.core.kernel.requests import AttemptState, Hold, Phase, RequestState
from gateway.core.placement.placer import Placement
from gateway.core.vocabulary import LegRole, ModelName

_INVITED_MAX = 4
"""Replicas looked at by each event, besides those that changed, for held requests that other targets may suit better by
then."""


class Placing:
    """Places waiting requests and starts their attempts."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self.newcomer: RequestState | None = None
        """Request that has just arrived while no other waits. It is placed without being queued, if it can be."""
        self._peers_version = 0
        """Version of the peers when held requests were last looked at."""
        self._invited_slot = 0
        """Slot from which replicas without a change are looked at next for their held requests, in turn."""

    def place_waiting(self, now_ns: int) -> None:
        """Place all requests that can be placed, in turn. Placing only uses capacity up, so a class that is blocked
        stays blocked for the rest of the round."""
        newcomer, self.newcomer = self.newcomer, None
        if self._core.waiting.count:
            if newcomer is not None:
                self._queue(newcomer)
            self._place_queued(now_ns)
        elif newcomer is not None:
            self._place_newcomer(newcomer, now_ns)
        homes = self._core.waiting.homes
        if homes:
            self._place_held(now_ns)
            if self._core.replicas.idle(homes & ~self._core.waiting.homes):
                self._place_queued(now_ns)  # a replica idles, and no request is held for it any longer
        else:
            self._core.replicas.changed = 0

    def _place_newcomer(self, request: RequestState, now_ns: int) -> None:
        """Place the only request that waits; it is queued only if it must wait."""
        placement = self._placement_of(request, now_ns)
        if placement is None:
            self._queue(request)
        elif isinstance(placement, Hold):
            self._queue(request)
            self._core.hold(request, placement)
        else:
            self._start(request, placement, now_ns)

    def _queue(self, request: RequestState) -> None:
        """Queue a request that could not be placed at once."""
        self._core.waiting.join(request)
        self._core.timers.set(request.timer, request.wakes_ns)

    def _place_queued(self, now_ns: int) -> None:
        """Place queued requests, head by head. Requests held for a replica that has closed are released first, and a
        start that closes one begins the round again, so that later requests never choose before released ones."""
        self._release_of_closed()
        heads = self._core.waiting.heads()
        blocked: list[RequestState] = []
        """Heads that found no target. They may spill over to another pool once no request waits for that one."""
        while heads:
            request = self._core.waiting.next_of(heads)
            fit = request.request_class.fit
            placement = self._placement_of(request, now_ns)
            if placement is None:
                if fit is not None:
                    blocked.append(request)
                continue
            if isinstance(placement, Hold):
                self._core.hold(request, placement)
            else:
                self._start(request, placement, now_ns)
                if self._release_of_closed():
                    heads, blocked = self._core.waiting.heads(), []
                    continue
            successor = self._core.waiting.head_of(request.request_class)
            if successor is not None:
                self._core.waiting.add_to(heads, successor)
            if blocked and fit is not None and not self._is_waited_for(request.profile.model, fit):
                for each in blocked:
                    self._core.waiting.add_to(heads, each)
                blocked = []

    def _release_of_closed(self) -> bool:
        """Release the requests held for replicas that have closed; True if there were any."""
        closed = self._core.waiting.homes & ~self._core.replicas.open
        for slot in slots_of(closed):
            for request in self._core.waiting.all_held_for(slot):
                self._core.unhold(request)
        return bool(closed)

    def _is_waited_for(self, model: ModelName, fit: PoolFit) -> bool:
        """True if requests wait for the preferred pool of requests with this fit."""
        return bool(fit.preferred) and self._core.waiting.pool_length(model, fit.preferred[0]) > 0

    def _place_held(self, now_ns: int) -> None:
        """Look again at requests held for replicas: all replicas that changed, and a few of the others in turn, since
        the change may have made another target better. Without any change since the last look nothing is done."""
        changed, self._core.replicas.changed = self._core.replicas.changed, 0
        if not changed and self._peers_version == self._core.peers.version:
            return
        self._peers_version = self._core.peers.version
        homes = self._core.waiting.homes
        for slot in slots_of(homes & changed):
            self._place_held_for(slot, now_ns)
        for _ in range(_INVITED_MAX):
            others = self._core.waiting.homes & ~changed
            if not others:
                return
            slot = next_slot_from(others, self._invited_slot)
            self._invited_slot = slot + 1
            changed |= 1 << slot
            self._place_held_for(slot, now_ns)

    def _place_held_for(self, slot: int, now_ns: int) -> None:
        """Look again at the head of each class held for one replica: it starts, stays, is held for another one, or is
        released."""
        heads = self._core.waiting.held_heads(slot)
        stays = False
        """True once a head that waits for the replica's time stays: the turn was its own."""
        while heads:
            request = self._core.waiting.next_of(heads)
            request_class, held = request.request_class, request.held
            assert held is not None, "it is held for a replica"
            held.is_next = self._core.waiting.order.is_contested and not (stays or held.is_cold)
            placement = self._placement_of(request, now_ns)
            held.is_next = False
            if isinstance(placement, Hold):
                if placement.slot == slot and placement.is_cold == held.is_cold:
                    stays = stays or not held.is_cold
                    continue
                self._core.hold(request, placement)
            elif placement is None:
                self._core.unhold(request)
            else:
                self._start(request, placement, now_ns)
            successor = self._core.waiting.held_head_of(slot, request_class, is_cold=held.is_cold)
            if successor is not None:
                self._core.waiting.add_to(heads, successor)

    def _placement_of(self, request: RequestState, now_ns: int) -> Placement | Hold | None:
        """Choose a target for a waiting request: a placement, a hold for one replica, or None while it must wait."""
        core = self._core
        for feature in core.hooks.before_choice:
            feature.before_choice(request, now_ns)
        placement = core.placer.place(request, now_ns)
        if placement is None:
            for feature in core.hooks.must_wait:
                feature.must_wait(request, now_ns)
        return placement

    def _start(self, request: RequestState, placement: Placement, now_ns: int) -> None:
        """Start an attempt at the placed target: one leg that runs the whole request, or in a disaggregated pool a
        prefill leg and, at once or later, a decode leg."""
        self._core.stop_waiting(request)
        if now_ns > request.arrived_ns:
            self._core.drain_rates.served(self._core.waiting, request, now_ns)
        request.move_to(Phase.RUNNING)
        for feature in self._core.hooks.started:
            feature.started(request)
        request.attempts += 1
        if request.attempts == 1 and not request.profile.appends:
            self._core.retry_budget.first_attempt()
        attempt = request.attempt = AttemptState(request.attempts)
        self._core.timers.set(
            request.timer,
            min(now_ns + self._core.config.attempt.first_token_deadline_ns, request.deadline_ns),
        )
        for feature in self._core.hooks.plan_legs:
            if feature.plan_legs(request, attempt, placement, now_ns):
                return
        self._core.open_leg(request, attempt, LegRole.WHOLE, placement, now_ns)
