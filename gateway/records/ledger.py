"""Follows each request from its arrival to its owner's last word, once for all who tell of requests: the log, the
metrics, the decisions and the audit read its records, or are handed them when they are complete.

It decides nothing, and a record names neither tenant nor text, so that whoever is handed one may keep it.
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
    """Of the target, as it was assigned then."""
    policy: ResidencyPolicy
    """Ours, then."""
    replicas_here: int
    """Replicas of our own for the model, then."""
    resume: int = 0
    """It goes on with an answer that broke, for the how many'th time."""
    place_by: str = ""
    """On whose word the place is believed."""
    first_token_ns: int | None = None
    ended_ns: int | None = None
    result: LegResult | None = None
    """None while it runs."""
    ended: events.LegEnded | None = None
    """With its refusal, detail and tokens."""


@value
class Origin:
    """Who forwarded a request to us."""

    gateway_id: GatewayId
    hops: Hops
    policy: ResidencyPolicy
    """As far as its stamp tells."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request at this gateway. The ledger writes it until its owner is done, but for `refusals`, which whoever
    remembers them adds; nobody writes it afterwards."""

    request_id: RequestId
    model: ModelName
    arrived_ns: int
    origin: Origin | None
    """None for a client's request."""
    policy: ResidencyPolicy
    """Ours, when it arrived."""
    profile_key: int
    """Identity of its profile: an id can come again while the last answer to it is still on its way out."""
    legs: list[LegRecord] = field(default_factory=list)
    """In the order of their start."""
    first_leg: LegRecord | None = None
    """The one that brought the first token."""
    first_token_ns: int | None = None
    shadow: ordered.RecordShadow | None = None
    refusals: tuple[ordered.RefuseForward, ...] = ()
    """How often, and why, it was turned away here before, as far as that is remembered."""
    end: ordered.EndRequest | None = None
    ran_at: RanAt | None = None
    is_control: bool = False
    """A call about a stored response, which has no model."""

    def leg(self, attempt: int, number: int) -> LegRecord | None:
        for leg in reversed(self.legs):
            if leg.leg == number and leg.attempt == attempt:
                return leg
        return None

    def number_of(self, leg: LegRecord) -> int | None:
        """Where an attempt has more than one leg they are told apart; None where it has no other."""
        is_alone = len(self.legs) == 1 or not any(each.attempt == leg.attempt and each is not leg for each in self.legs)
        return None if is_alone else leg.leg

    def ended_by(self, attempt: int) -> LegResult | None:
        """What ended an attempt: of several legs, the one that the others were cancelled for."""
        results = [leg.result for leg in self.legs if leg.attempt == attempt]
        others = (LegResult.COMPLETED, LegResult.CANCELLED, None)
        return next((each for each in results if each not in others), results[-1] if results else None)


TakeFinished = Callable[[RequestProfile, ordered.EndRequest, RequestSummary, RequestRecord | None], None]
"""Told once of each request that was ours. It has no record if it came after a crash of the core, or of too many."""


class Ledger:
    """An observer of the driver, the first: what it knows includes the step that the others are just told of."""

    def __init__(self, place: Place, *, open_max: int) -> None:
        """`open_max` requests are followed at once; of more, the oldest are told without a record. It takes as many as
        the edges let in."""
        self.policy = closed_policy(place, "no policy applied yet")
        """In force now."""
        self.places: dict[Target, Place] = {}
        self.words: Mapping[Target, str] = {}
        """On whose word the places of those are believed that the region file does not name."""
        """Of the targets assigned now."""
        self.replicas_of: dict[ModelName, int] = {}
        """Replicas of our own by model, assigned now."""
        self._open_max = open_max
        self._forgotten: set[int] = set()
        """`profile_key` of those that are open beyond `open_max`."""
        self._open: dict[RequestId, RequestRecord] = {}
        self._departing: dict[int, RequestRecord] = {}
        """By `profile_key`: those whose id has come again before their owner was done."""
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
        """Of a request whose owner is not done yet; of two with one id, the later."""
        return self._open.get(request_id)

    def has_forgotten(self, profile: RequestProfile) -> bool:
        """Why it has no record, where that is so: it was followed, and then there were too many."""
        return id(profile) in self._forgotten

    def leg_of(
        self, event: events.LegAccepted | events.FirstToken | events.ResponseStored | events.LegEnded
    ) -> LegRecord | None:
        record = self._open.get(event.request_id)
        return None if record is None else record.leg(event.attempt, event.leg)

    def hand_to(self, take: TakeFinished) -> None:
        """Whoever wants the records of finished requests. They are told in the order in which they asked."""
        self._takers.append(take)

    def on_finished(self, profile: RequestProfile, end: ordered.EndRequest, summary: RequestSummary) -> None:
        """Called once by each request's owner. One taker that fails does not cost the others their record; the first
        failure is raised."""
        record = self._take(profile)
        if record is not None and record.end is end:
            record.ran_at = summary.ran_at
        failures: list[Exception] = []
        for take in self._takers:
            try:
                take(profile, end, summary, record)
            except Exception as error:  # noqa: BLE001 - raised below, once everybody has been told
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
        """One of its arrival alone, which nobody follows: all there is of a forward that is turned away."""
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
        self.replicas_of = {}
        placed_at = (each for each in event.replicas if each.role is not ReplicaRole.DECODE)
        for model in (model for replica in placed_at for model in replica.models):
            self.replicas_of[model] = self.replicas_of.get(model, 0) + 1


REGION_FILE = "region_file"
"""Our own operator says where the target is."""

ServesModel = Callable[[ModelName], bool]
"""Whether anybody serves a model now, here or at a peer."""


def names_served_model(profile: RequestProfile, record: RequestRecord | None, serves: ServesModel) -> bool:
    """Whether the model of a request may be written down: one that nobody serves is only what a client wrote.

    Whoever was placed asked for one that was served then, but for those that follow on a stored response: they go where
    that is, whatever they call its model.
    """
    was_placed = record is not None and bool(record.legs) and not profile.follows
    return was_placed or serves(profile.model)


def rule_applied(
    profile: RequestProfile, record: RequestRecord, leg: LegRecord, place: Place
) -> tuple[ResidencyPolicy, str]:
    """A forward is held against its origin's policy, our own request against ours of that moment and its key. In short
    words: why that allowed the place."""
    policy = leg.policy if record.origin is None else record.origin.policy
    why = may_process(policy, profile.tenant, place).why
    is_narrowed = record.origin is None and profile.process is not None
    return policy, f"{why}, and the key's rule allows it" if is_narrowed else why


def refusal_in(effects: Iterable[Effect]) -> ordered.RefuseForward | None:
    """Whether a forward that arrived was turned away."""
    return next((each for each in effects if isinstance(each, ordered.RefuseForward)), None)


def _origin_of(event: events.ForwardArrived) -> Origin:
    stamp = event.stamp
    policy = ResidencyPolicy(stamp.origin, stamp.rule, PlaceRule(), digest=stamp.policy_digest)
    return Origin(event.origin_gateway_id, event.hops, policy)
