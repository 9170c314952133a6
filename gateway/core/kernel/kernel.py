"""Steps that the parts of the core, and its optional features, may ask each other to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.core.kernel.admission import Admission
from gateway.core.kernel.attempts import RetryBudget
from gateway.core.kernel.effects import Effect, StartLeg, StopLeg
from gateway.core.kernel.feature import Feature, Hooks
from gateway.core.kernel.model_identity import identity_placed_by
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import AttemptState, Hold, LegState, RequestState, Size
from gateway.core.kernel.state import GatewayState
from gateway.core.placement.placer import Placement
from gateway.core.placement.policy import PlugIns, PolicyFactory
from gateway.core.vocabulary import (
    Decision,
    GatewayId,
    LegRole,
    ModelName,
    Outcome,
    Place,
    PoolChoice,
    RequestId,
    RequestProfile,
    ServiceClass,
    Target,
    TargetKind,
)

_INTERACTIVE = ServiceClass.INTERACTIVE


class Kernel(GatewayState):
    """State of the core, the effects of the event that is handled, and the steps of a request that several parts
    take."""

    def __init__(self, gateway_id: GatewayId, place: Place, *, seed: int, plug_ins: PlugIns) -> None:
        super().__init__(gateway_id, place, seed=seed, plug_ins=plug_ins)
        self.effects: list[Effect] = []
        self.features: tuple[Feature, ...] = ()
        self.hooks = Hooks(())
        self.admission = Admission(self)
        self.retry_budget = RetryBudget(self.config.attempt)

    def size_of(self, profile: RequestProfile) -> Size | None:
        for feature in self.hooks.size_of:
            size = feature.size_of(profile)
            if size is not None:
                return size
        return None

    def policy_named(self, name: str) -> PolicyFactory:
        for feature in self.features:
            factory = feature.placement_policy(name)
            if factory is not None:
                return factory
        return self.plug_ins(name)

    def is_awaited(self, model: ModelName) -> bool:
        return any(feature.awaits(model) for feature in self.hooks.awaits)

    def queue_share(self, profile: RequestProfile) -> float:
        share = 1.0
        for feature in self.hooks.queue_share:
            share = min(share, feature.queue_share(profile))
        return share

    def pinned(self, follows: str) -> Target | None:
        for feature in self.hooks.pinned:
            target = feature.pinned(follows)
            if target is not None:
                return target
        return None

    def longest_of(self, request_class: RequestClass) -> int | None:
        longest = [feature.longest_of(request_class) for feature in self.hooks.longest_of]
        return next((each for each in longest if each is not None), None)

    def attempt_of(self, request_id: RequestId, number: int) -> AttemptState | None:
        """Attempt of that number if it is the request's living one, else None: stale events of superseded attempts are
        ignored."""
        request = self.requests.get(request_id)
        if request is None or request.attempt is None or request.attempt.number != number:
            return None
        return request.attempt

    def wait_max_ns(self, request: RequestState) -> int:
        """Longest time that the request may wait for its next attempt."""
        for feature in self.hooks.wait_max_ns:
            wait_max_ns = feature.wait_max_ns(request)
            if wait_max_ns is not None:
                return wait_max_ns
        return self.config.queue.wait_max_ns

    def promised_ns(self, request: RequestState) -> int | None:
        """Time within which the request was promised its first token; None: no promise was made."""
        for feature in self.hooks.promised_ns:
            promised_ns = feature.promised_ns(request)
            if promised_ns is not None:
                return promised_ns
        return None

    def hold(self, request: RequestState, hold: Hold) -> None:
        """Hold a waiting request for one replica, and tell the policy."""
        if request.held is not None:
            self.placer.unheld(request.held)
        self.waiting.hold(request, hold)
        self.placer.held(hold)

    def unhold(self, request: RequestState) -> None:
        """Release a held request: it goes on waiting, for any target."""
        assert request.held is not None, "it is held for a replica"
        self.placer.unheld(request.held)
        self.waiting.unhold(request)

    def start_waiting(self, request: RequestState) -> None:
        """Queue a request at the place that its arrival gives it."""
        for feature in self.hooks.joined:
            feature.joined(request)
        self.waiting.join(request)

    def stop_waiting(self, request: RequestState) -> None:
        """Take a waiting request out of the queues, and release its hold."""
        if request.held is not None:
            self.placer.unheld(request.held)
        self.waiting.leave(request)
        for feature in self.hooks.left:
            feature.left(request)

    def forget(self, request: RequestState) -> None:
        """Drop the state of a request that has ended with all its legs."""
        if self.requests.pop(request.request_id, None) is not None:
            for feature in self.hooks.forgotten:
                feature.forgotten(request)

    def decision_of(self, request: RequestState, placement: Placement, now_ns: int) -> Decision:
        """Record of a placement."""
        pool: PoolChoice | None = None
        for feature in self.hooks.pool_choice:
            pool = pool or feature.pool_choice(request, placement)
        return Decision(
            placement.reason,
            placement.matched_blocks,
            request.profile.prefix_blocks,
            placement.candidates,
            waited_ns=now_ns - request.arrived_ns,
            considered=placement.considered,
            pool=pool,
        )

    # Legs

    def open_leg(
        self, request: RequestState, attempt: AttemptState, role: LegRole, placement: Placement, now_ns: int
    ) -> None:
        """Open one more leg of a living attempt, count it at its target, and order the driver to start it."""
        attempt.legs_opened += 1
        leg = LegState(
            attempt.number,
            attempt.legs_opened,
            role,
            placement.state,
            self.decision_of(request, placement, now_ns),
            policy=self.policy,
            started_ns=now_ns,
            kept_blocks=placement.matched_blocks,
            replicas_here=self.replicas.groups.counts.get(request.profile.model, 0),
        )
        attempt.legs[leg.number] = leg
        request.record.legs.append(leg)
        leg.uncached_bytes = placement.uncached_bytes
        if leg.uncached_bytes < 0:
            leg.uncached_bytes = request.profile.uncached_bytes(leg.kept_blocks)
        key = (request.request_id, attempt.number, leg.number)
        is_whole = not request.profile.stream
        leg.state.home.started(leg.state, key, now_ns, leg.uncached_bytes, is_whole=is_whole)
        order = self._order(request, attempt, leg)
        for feature in self.hooks.on_order:
            feature.on_order(request, leg, order)
        self.effects.append(order)

    def _order(self, request: RequestState, attempt: AttemptState, leg: LegState) -> StartLeg:
        """Order that starts a leg, with what its kind of target needs: the connector and pool for a part, hops and
        stamp for a peer."""
        connector = prefill = pool = hops = stamp = identity = None
        yields, answers_as = True, ""
        if attempt.planner is not None:
            part = attempt.planner.part_of(attempt, leg)
            connector, pool, prefill = part.connector, part.pool, part.prefill
            if leg.role is LegRole.DECODE:
                answers_as = identity_placed_by(request, attempt.number)
        elif leg.target.kind is TargetKind.PEER:
            hops = request.hops.after(crosses_regions=leg.state.spec.place.region != self.place.region)
            stamp = request.stamp
            identity = request.request_class.identity
            yields = request.request_class.service_class is not _INTERACTIVE or (
                request.profile.service_class is _INTERACTIVE
            )
        return StartLeg(
            request.request_id,
            attempt.number,
            leg.number,
            leg.role,
            leg.target,
            leg.decision,
            request.deadline_ns,
            hops,
            stamp,
            connector,
            prefill,
            pool,
            identity=identity,
            answers_as=answers_as,
            yields=yields,
        )

    def stop_leg(self, request: RequestState, attempt: AttemptState, leg: LegState, detail: str) -> None:
        """Order one leg to stop, unless that was ordered before. It ends when its LegEnded comes."""
        if not leg.is_stopping:
            leg.is_stopping = True
            self.effects.append(StopLeg(request.request_id, attempt.number, leg.number, detail))

    def stop_legs(self, request: RequestState, attempt: AttemptState, detail: str) -> None:
        """Order all living legs of an attempt to stop, without blame for their targets."""
        for leg in attempt.legs.values():
            self.stop_leg(request, attempt, leg, detail)

    # Steps of other parts

    def lapse(self, request: RequestState, attempt: AttemptState, why: str, now_ns: int) -> None:
        """End an attempt that waits between its legs and cannot go on, through no target's fault. Its request is queued
        again, as often as after full engines."""
        raise NotImplementedError

    def wait(self, request: RequestState, now_ns: int) -> None:
        """Queue a request and set its timer. One whose deadline has come already ends."""
        raise NotImplementedError

    def wait_again(self, request: RequestState, now_ns: int) -> None:
        """Queue a request again after a failed attempt, at its old place, under the policy in force rather than that of
        its last attempt. It ends instead if no known target could ever serve it."""
        raise NotImplementedError

    def end(self, request: RequestState, outcome: Outcome, detail: str, *, retry_after_ns: int = 0) -> None:
        """End the request for its client. Its state stays until each living leg has reported its end."""
        raise NotImplementedError

    def reevaluate_waiting(self) -> None:
        """Judge all waiting requests by the rules in force. They end, or return to the queue in the class they have by
        then; those that no known target could ever serve end too."""
        raise NotImplementedError

    def take_back_legs(
        self, legs: list[tuple[RequestState, LegState]], details: Mapping[Target, str], now_ns: int
    ) -> None:
        """Order legs at targets that will soon be gone to be taken back, as many as other targets have room for; a
        detail tells why for each target. To be called after waiting requests are placed, which may take the room.
        O(legs + classes x available targets)."""
        raise NotImplementedError

    def after_placing(self, step: Callable[[int], None]) -> None:
        """Take a step once, with the time of the event, after waiting requests are placed. Asked for twice by one
        event, it is taken once."""
        raise NotImplementedError

    def features_changed(self) -> None:
        """Ask features again whether they are on."""
        raise NotImplementedError

    def pools_changed(self) -> None:
        """Fit waiting requests to changed pools."""
        raise NotImplementedError


Features = Callable[[Kernel], list[Feature]]
"""Makes the optional features of a core."""
