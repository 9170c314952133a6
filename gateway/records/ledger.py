"""Ledger: follows each request from its arrival until its owner is done, once for all consumers. The log, metrics,
decisions and audit log read its records, or receive them when they are complete.

It decides nothing. A record names neither tenant nor text, so every consumer may keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core import effects as ordered
from gateway.core import events
from gateway.core.effects import Effect
from gateway.core.events import Event
from gateway.core.residency import ResidencyPolicy, closed_policy, may_process
from gateway.core.value import value
from gateway.core.vocabulary import (
    Decision,
    GatewayId,
    Hops,
    LegResult,
    LegRole,
    ModelName,
    Place,
    PlaceRule,
    ReplicaRole,
    RequestId,
    RequestProfile,
    Target,
    peer_target,
    replica_target,
)
from gateway.request.legs import RanAt, RequestSummary


@dataclass(slots=True, eq=False)
class LegRecord:
    """One leg of an attempt."""

    attempt: int
    leg: int
    role: LegRole
    target: Target
    decision: Decision
    started_ns: int
    place: Place | None
    """Place of the target, as assigned when the leg started."""
    policy: ResidencyPolicy
    """Policy of this gateway when the leg started."""
    replicas_here: int
    """Replicas of this gateway for the model when the leg started."""
    resume: int = 0
    """Number of the resume, counted from 1, where the leg continues a broken answer; else 0."""
    place_by: str = ""
    """Source of the stated place: `region_file`, `controller`, or `announced_by:GATEWAY`."""
    first_token_ns: int | None = None
    ended_ns: int | None = None
    result: LegResult | None = None
    """Unset while the leg runs."""
    ended: events.LegEnded | None = None
    """Event that ended it, with refusal, detail and tokens."""


@value
class Origin:
    """Gateway that forwarded a request here, as the forward states it."""

    gateway_id: GatewayId
    hops: Hops
    policy: ResidencyPolicy
    """Policy of the origin, as far as the forward's stamp tells it."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request at this gateway. The ledger writes it until its owner is done, except `refusals`, which the decision
    log fills in; nothing is written afterwards."""

    request_id: RequestId
    model: ModelName
    arrived_ns: int
    origin: Origin | None
    """Unset for a client's request."""
    policy: ResidencyPolicy
    """Policy of this gateway when the request arrived."""
    profile_key: int
    """Identity of its profile: a request id can return while the last answer to it is still being sent."""
    legs: list[LegRecord] = field(default_factory=list)
    """Legs in the order of their start."""
    first_leg: LegRecord | None = None
    """Leg that brought the first token."""
    first_token_ns: int | None = None
    shadow: ordered.RecordShadow | None = None
    refusals: tuple[ordered.RefuseForward, ...] = ()
    """Earlier refusals of this forward by this gateway, as far as they are remembered."""
    end: ordered.EndRequest | None = None
    ran_at: RanAt | None = None
    is_control: bool = False
    """True for a call about a stored response, which has no model."""

    def leg(self, attempt: int, number: int) -> LegRecord | None:
        """Leg of an attempt by its number; None if there is none."""
        for leg in reversed(self.legs):
            if leg.leg == number and leg.attempt == attempt:
                return leg
        return None

    def number_of(self, leg: LegRecord) -> int | None:
        """Number of a leg where its attempt has more than one leg; None where it is the only one."""
        is_alone = len(self.legs) == 1 or not any(each.attempt == leg.attempt and each is not leg for each in self.legs)
        return None if is_alone else leg.leg

    def ended_by(self, attempt: int) -> LegResult | None:
        """Result that ended an attempt: of several legs, the one because of which the others were cancelled."""
        results = [leg.result for leg in self.legs if leg.attempt == attempt]
        others = (LegResult.COMPLETED, LegResult.CANCELLED, None)
        return next((each for each in results if each not in others), results[-1] if results else None)


TakeFinished = Callable[[RequestProfile, ordered.EndRequest, RequestSummary, RequestRecord | None], None]
"""Callback, called once for each finished request of this gateway. The record is None if the request came after a crash
of the core, or if too many were open."""


class Ledger:
    """Observer of the driver, called before all others, so that they find the current step in its records."""

    def __init__(self, place: Place, *, open_max: int) -> None:
        """`open_max`: requests followed at once; beyond it the oldest are reported without a record. Choose the number
        that the edges admit."""
        self.policy = closed_policy(place, "no policy applied yet")
        """Policy in force."""
        self.places: dict[Target, Place] = {}
        """Places of the targets assigned at present."""
        self.words: Mapping[Target, str] = {}
        """Source of the stated place, for each target that the region file does not name."""
        self.replicas_of: dict[ModelName, int] = {}
        """Replicas assigned to this gateway at present, by model."""
        self._open_max = open_max
        self._forgotten: set[int] = set()
        """`profile_key` of requests dropped from the ledger because more than `open_max` were open."""
        self._open: dict[RequestId, RequestRecord] = {}
        self._departing: dict[int, RequestRecord] = {}
        """Requests whose id was used again before their owner was done, by `profile_key`."""
        self._takers: list[TakeFinished] = []
        self._on_event: dict[type, Callable[[Any, list[Effect], int], None]] = {
            events.RequestArrived: self._request_arrived,
            events.ForwardArrived: self._forward_arrived,
            events.FirstToken: self._first_token_came,
            events.LegEnded: self._leg_ended,
            events.AssignmentApplied: self._assigned,
            events.PolicyApplied: self._policy_applied,
        }
        self._on_effect: dict[type, Callable[[Any, int], None]] = {
            ordered.StartLeg: self._leg_started,
            ordered.EndRequest: self._request_ended,
            ordered.RecordShadow: self._shadowed,
        }
        self.watches = frozenset[type]([*self._on_event, *self._on_effect])

    def __len__(self) -> int:
        return len(self._open) + len(self._departing)

    def get(self, request_id: RequestId) -> RequestRecord | None:
        """Record of a request whose owner is not done yet; of two with the same id, the later one."""
        return self._open.get(request_id)

    def has_forgotten(self, profile: RequestProfile) -> bool:
        """True if the request was followed and then dropped because too many were open."""
        return id(profile) in self._forgotten

    def leg_of(
        self, event: events.LegAccepted | events.FirstToken | events.ResponseStored | events.LegEnded
    ) -> LegRecord | None:
        record = self._open.get(event.request_id)
        return None if record is None else record.leg(event.attempt, event.leg)

    def hand_to(self, take: TakeFinished) -> None:
        """Register a consumer of finished requests. Consumers are called in the order of registration."""
        self._takers.append(take)

    def on_finished(self, profile: RequestProfile, end: ordered.EndRequest, summary: RequestSummary) -> None:
        """Hand the record to all consumers; each request's owner calls this once. A consumer that fails does not stop
        the others; the first failure is raised at the end."""
        record = self._take(profile)
        if record is not None and record.end is end:
            record.ran_at = summary.ran_at
        failures: list[Exception] = []
        for take in self._takers:
            try:
                take(profile, end, summary, record)
            except Exception as error:  # noqa: BLE001 - raised below, once all consumers were called
                failures.append(error)
        if self._forgotten:
            self._forgotten.discard(id(profile))
        if failures:
            raise failures[0]

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        """Follow one step: its event, and then what was ordered."""
        take = self._on_event.get(type(event))
        if take is not None:
            take(event, effects, now_ns)
        for effect in effects:
            take_effect = self._on_effect.get(type(effect))
            if take_effect is not None:
                take_effect(effect, now_ns)

    def record_of(self, event: events.RequestArrived | events.ForwardArrived, now_ns: int) -> RequestRecord:
        """Record of an arrival that is not followed: all there is of a forward that is refused."""
        profile = event.profile
        origin = None if isinstance(event, events.RequestArrived) else _origin_of(event)
        return RequestRecord(
            profile.request_id, profile.model, now_ns, origin, self.policy, id(profile), is_control=profile.is_control
        )

    def _request_arrived(self, event: events.RequestArrived, _effects: list[Effect], now_ns: int) -> None:
        self._follow(event, now_ns)

    def _forward_arrived(self, event: events.ForwardArrived, effects: list[Effect], now_ns: int) -> None:
        if refusal_in(effects) is None:
            self._follow(event, now_ns)

    def _policy_applied(self, event: events.PolicyApplied, _effects: list[Effect], _now_ns: int) -> None:
        self.policy = event.policy

    def _request_ended(self, effect: ordered.EndRequest, _now_ns: int) -> None:
        record = self._open.get(effect.request_id)
        if record is not None and record.end is None:
            record.end = effect

    def _shadowed(self, effect: ordered.RecordShadow, _now_ns: int) -> None:
        record = self._open.get(effect.request_id)
        if record is not None:
            record.shadow = effect

    def _follow(self, event: events.RequestArrived | events.ForwardArrived, now_ns: int) -> None:
        record = self.record_of(event, now_ns)
        before = self._open.pop(record.request_id, None)
        if before is not None:
            self._departing[before.profile_key] = before
        self._open[record.request_id] = record
        if len(self._open) + len(self._departing) > self._open_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        if self._departing:
            record = self._departing.pop(next(iter(self._departing)))
        else:
            record = self._open.pop(next(iter(self._open)))
        self._forgotten.add(record.profile_key)

    def _take(self, profile: RequestProfile) -> RequestRecord | None:
        record = self._open.get(profile.request_id)
        if record is None or record.profile_key != id(profile):
            return self._departing.pop(id(profile), None)
        del self._open[profile.request_id]
        return record

    def _leg_started(self, order: ordered.StartLeg, now_ns: int) -> None:
        record = self._open.get(order.request_id)
        if record is not None:
            leg = LegRecord(
                order.attempt,
                order.leg,
                order.role,
                order.target,
                order.decision,
                now_ns,
                self.places.get(order.target),
                self.policy,
                self.replicas_of.get(record.model, 0),
                order.resume,
                self.words.get(order.target, REGION_FILE),
            )
            record.legs.append(leg)

    def _first_token_came(self, event: events.FirstToken, _effects: list[Effect], now_ns: int) -> None:
        record = self._open.get(event.request_id)
        leg = None if record is None else record.leg(event.attempt, event.leg)
        if record is None or leg is None or leg.ended is not None:
            return
        if leg.first_token_ns is None:
            leg.first_token_ns = now_ns
        if record.first_leg is None and event.is_sent:
            record.first_leg, record.first_token_ns = leg, now_ns

    def _leg_ended(self, event: events.LegEnded, _effects: list[Effect], now_ns: int) -> None:
        leg = self.leg_of(event)
        if leg is not None and leg.ended is None:
            leg.ended, leg.result, leg.ended_ns = event, event.result, now_ns

    def _assigned(self, event: events.AssignmentApplied, _effects: list[Effect], _now_ns: int) -> None:
        self.places = {replica_target(each.replica_id): each.place for each in event.replicas}
        self.places |= {peer_target(each.gateway_id): each.place for each in event.peers}
        self.words = {replica_target(each.replica_id): each.place_by for each in event.replicas}
        self.words |= {peer_target(each.gateway_id): each.place_by for each in event.peers}
        self.replicas_of = {}
        placed_at = (each for each in event.replicas if each.role is not ReplicaRole.DECODE)
        for model in (model for replica in placed_at for model in replica.models):
            self.replicas_of[model] = self.replicas_of.get(model, 0) + 1


REGION_FILE = "region_file"
"""Source of a place that the operator's own region file states."""

ServesModel = Callable[[ModelName], bool]
"""Predicate: a model is served at present, here or at a peer."""


def names_served_model(profile: RequestProfile, record: RequestRecord | None, serves: ServesModel) -> bool:
    """True if the model of a request may be written down. A model that no gateway serves is only text that a client
    wrote.

    A request that was placed named a model that was served then. Requests that follow a stored response are the
    exception: they go to where the response is, whatever model they name.
    """
    was_placed = record is not None and bool(record.legs) and not profile.follows
    return was_placed or serves(profile.model)


def rule_applied(
    profile: RequestProfile, record: RequestRecord, leg: LegRecord, place: Place
) -> tuple[ResidencyPolicy, str]:
    """Policy that applied to a leg, and in a few words why it allowed the place. A forward is judged by its origin's
    policy, a client's request by this gateway's policy at that moment and by its key."""
    policy = leg.policy if record.origin is None else record.origin.policy
    why = may_process(policy, profile.tenant, place).why
    is_narrowed = record.origin is None and profile.process is not None
    return policy, f"{why}, and the key's rule allows it" if is_narrowed else why


def refusal_in(effects: Iterable[Effect]) -> ordered.RefuseForward | None:
    """Refusal of a forward that arrived; None if it was accepted."""
    return next((each for each in effects if isinstance(each, ordered.RefuseForward)), None)


def _origin_of(event: events.ForwardArrived) -> Origin:
    stamp = event.stamp
    policy = ResidencyPolicy(stamp.origin, stamp.rule, PlaceRule(), digest=stamp.policy_digest)
    return Origin(event.origin_gateway_id, event.hops, policy)
