"""Admission of requests: why a request is rejected, why a forward is refused, and the class of a request that is
admitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gateway.core.kernel.config import PeerAvailability
from gateway.core.kernel.events import ForwardArrived
from gateway.core.kernel.feasibility import why_no_newcomer
from gateway.core.kernel.model_identity import needed_by
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Size
from gateway.core.kernel.residency import Verdict, both, may_enter, processing_rule, refusal_of
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    GatewayId,
    Hops,
    ModelName,
    NeededIdentity,
    Outcome,
    Place,
    PlaceRule,
    RefusalReason,
    RegionName,
    ReplicaId,
    RequestProfile,
    ResidencyStamp,
    ServiceClass,
    Target,
    TargetKind,
    TenantName,
)

_NO_HOPS = Hops()
_CLASSES_MAX = 1024
_OVERRUN_MAX: Final = 2
"""Multiple of the requests that an origin may count on beyond this gateway's room at which further forwards are
refused: several origins see the same room, and an estimate is off by as much."""
_INTERACTIVE: Final = ServiceClass.INTERACTIVE


_Kind = tuple[ModelName, TenantName, PlaceRule | None, frozenset[Connector], ServiceClass, bool, bool]


class Admittance:
    """Verdict of the rules in force on a client's request of one kind."""

    __slots__ = ("ingress", "request_class", "rule")

    def __init__(self, ingress: Verdict, rule: PlaceRule, request_class: RequestClass) -> None:
        self.ingress = ingress
        """Verdict on whether the request may enter this region."""
        self.rule = rule
        """Places where the request may be processed."""
        self.request_class = request_class


class Admission:
    """Judge of newly arrived requests. It changes nothing but its own caches."""

    def __init__(self, core: GatewayState) -> None:
        self._core = core
        self._classes: dict[RequestClass, RequestClass] = {}
        """One object for each set of equal classes, which makes look-ups by class cheap; equality still decides."""
        self._admittances: dict[_Kind, Admittance] = {}
        """Verdicts by all properties of a request that they depend on; emptied when the rules change."""
        self._ingress: dict[tuple[TenantName, PlaceRule | None], Verdict] = {}
        """Verdicts on entry by tenant and the rule of the client's key; emptied with the above."""
        self._rules_version = -1

    def ingress_of(self, tenant: TenantName, process: PlaceRule | None) -> Verdict:
        """Verdict on whether a client of this tenant may enter this region; `process` is the rule of its key, which may
        narrow where its requests are processed."""
        if self._rules_version != self._core.rules_version:
            self._forget_old_rules()
        known = self._ingress.get((tenant, process))
        if known is None:
            if len(self._ingress) >= _CLASSES_MAX:
                self._ingress.clear()
            known = self._ingress[tenant, process] = may_enter(self._core.policy, tenant, process)
        return known

    def _forget_old_rules(self) -> None:
        self._admittances.clear()
        self._ingress.clear()
        self._rules_version = self._core.rules_version

    def admittance_of(self, profile: RequestProfile, size: Size | None) -> Admittance:
        """Verdict of the rules on a client's own request. A request that follows a stored response or has a size is
        judged by itself; any other like the last one of its kind, until the rules change."""
        if profile.follows or profile.is_control or size is not None:
            return self._judge(profile, size)
        if self._rules_version != self._core.rules_version:
            self._forget_old_rules()
        kind = (
            profile.model, profile.tenant, profile.process, profile.connectors, profile.service_class, profile.appends,
            profile.is_patient,
        )  # fmt: skip
        known = self._admittances.get(kind)
        if known is None:
            if len(self._admittances) >= _CLASSES_MAX:
                self._admittances.clear()
            known = self._admittances[kind] = self._judge(profile, None)
        return known

    def _judge(self, profile: RequestProfile, size: Size | None) -> Admittance:
        ingress = self.ingress_of(profile.tenant, profile.process)
        rule = self.rule_of(profile)
        return Admittance(ingress, rule, self.class_of(profile, rule, _NO_HOPS, size=size))

    def rejection_of(self, profile: RequestProfile, admittance: Admittance) -> tuple[Outcome, str] | None:
        ingress, request_class = admittance.ingress, admittance.request_class
        if not ingress.allowed:
            return Outcome.REJECTED_RESIDENCY_INGRESS, ingress.why
        if self._core.draining:
            return Outcome.REJECTED_DRAINING, "this gateway is going out of service"
        if not profile.follows:
            never = why_no_newcomer(self._core, profile, request_class)
            if never is not None:
                return never
        elif not self._can_follow(request_class):
            return Outcome.REJECTED_UNKNOWN_RESPONSE, "no such response is known here"
        return self._fullness_for(profile, request_class)

    def _fullness_for(self, profile: RequestProfile, request_class: RequestClass) -> tuple[Outcome, str] | None:
        """Rejection by a full queue, which applies only to a request that would have to wait in it."""
        fullness = self._fullness(profile, 0)
        if fullness is None or self._core.waiting.has_class(request_class):
            return fullness
        return None if self._core.placer.has_target(request_class) else fullness

    def overfullness_for(self, profile: RequestProfile) -> tuple[Outcome, str] | None:
        """Rejection of a request that passed a full queue, since a target was free, and then had to wait all the same:
        it may have been held for another target."""
        return self._fullness(profile, 1) if self._core.placer.takes_full_replicas else None

    def _fullness(self, profile: RequestProfile, own: int) -> tuple[Outcome, str] | None:
        """Rejection by the limits on waiting requests. `own`: 1 if the judged request is itself among those that wait,
        else 0. A request whose answer has begun goes before all new ones, so only others like it count."""
        queue, waiting = self._core.config.queue, self._core.waiting
        if profile.appends:
            appending = waiting.appending() - own
            is_full = appending >= queue.length_max
            return (Outcome.REJECTED_QUEUE_FULL, f"{appending} begun answers are waiting") if is_full else None
        length_max = queue.length_max
        if profile.service_class is not _INTERACTIVE:
            length_max = int(length_max * self._core.queue_share(profile))
        if waiting.count - own >= length_max:
            return Outcome.REJECTED_QUEUE_FULL, f"{len(waiting) - own} requests are waiting"
        of_tenant = waiting.tenant_length(profile.tenant) - own
        if of_tenant >= queue.tenant_length_max:
            return Outcome.REJECTED_TENANT_LIMIT, f"{of_tenant} requests of this tenant are waiting"
        return None

    def _can_follow(self, request_class: RequestClass) -> bool:
        return request_class.pinned is not None and self._core.placer.can_ever_reach(request_class)

    def refusal_of(
        self, event: ForwardArrived, request_class: RequestClass, now_ns: int
    ) -> tuple[RefusalReason, str] | None:
        """Reason to refuse a forward, or None; those of law come first."""
        return self._residency_refusal_of(event) or self._capacity_refusal_of(event, request_class, now_ns)

    def _residency_refusal_of(self, event: ForwardArrived) -> tuple[RefusalReason, str] | None:
        """Refusal of a forward by residency. Its origin is in the place that this gateway's operator configured,
        whatever the stamp claims."""
        origin = self._core.peers.get(event.origin_gateway_id)
        if origin is None:
            return RefusalReason.RESIDENCY_NOT_ACCEPTED, f"gateway {event.origin_gateway_id} is no peer of ours"
        told = origin.spec.place
        if event.stamp.origin != told:
            return (
                RefusalReason.RESIDENCY_STAMP,
                f"gateway {event.origin_gateway_id} is in {told.region}, not where its stamp says",
            )
        if not event.hops.is_within_limit(crosses_regions=told.region != self._core.place.region):
            return RefusalReason.HOP_LIMIT, "a forwarded request is not forwarded again"
        return refusal_of(self._core.policy, event.stamp)

    def _capacity_refusal_of(
        self, event: ForwardArrived, request_class: RequestClass, now_ns: int
    ) -> tuple[RefusalReason, str] | None:
        profile = event.profile
        stop = self._core.forwarding_stop
        if stop is not None:
            return stop.refusal, stop.words
        if self._core.draining:
            return RefusalReason.DRAINING, "this gateway is going out of service"
        if profile.request_id in self._core.requests:
            return RefusalReason.DUPLICATE, "a request of this id is here already"
        if event.deadline_ns <= now_ns:
            return RefusalReason.DEADLINE, "its deadline has passed"
        if profile.follows:
            can_follow = self._can_follow(request_class)
            return None if can_follow else (RefusalReason.UNKNOWN_RESPONSE, "no such response is known here")
        unfit = self._unfit(profile, event.stamp, request_class)
        if unfit is not None:
            return unfit
        if self._fullness_for(profile, request_class) is not None:
            return RefusalReason.QUEUE_FULL, f"{len(self._core.waiting)} requests are waiting"
        is_free = self._core.placer.has_replica(request_class) and not self._core.waiting.has_class(request_class)
        if is_free and self._core.config.placement.peer_availability is PeerAvailability.FREE_REPLICA:
            return None
        return self._busy(event, request_class, is_free=is_free)

    def _busy(
        self, event: ForwardArrived, request_class: RequestClass, *, is_free: bool
    ) -> tuple[RefusalReason, str] | None:
        """Refusal of a forward that would wait here for too long. A request of a yielding class waits at its origin
        instead."""
        core, model = self._core, event.profile.model
        if not is_free and request_class.service_rank:
            return RefusalReason.BUSY, f"there is no room to spare for what is {request_class.service_class}"
        queue_length = core.waiting.length_before(request_class)
        if not is_free and queue_length >= core.config.placement.peer_queue_length_max:
            return RefusalReason.BUSY, f"{queue_length} requests wait for `{model}`"
        if core.config.placement.peer_availability is PeerAvailability.FREE_REPLICA:
            return None
        position, ahead_max = core.placer.position_of(request_class, queue_length, event.origin_gateway_id)
        gives = core.placer.eligibility.awaited_replicas(request_class) & core.replicas.giving
        if (ahead_max or gives) and position > _OVERRUN_MAX * ahead_max + 1:
            return RefusalReason.BUSY, f"{position - 1} requests wait for a slot"
        return None

    def _unfit(
        self, profile: RequestProfile, stamp: ResidencyStamp, request_class: RequestClass
    ) -> tuple[RefusalReason, str] | None:
        """Refusal of a forward that no replica here could ever run. One replica must have all that it needs, so each
        step narrows down what the steps before left."""
        replicas, model = self._core.replicas, profile.model
        eligible = partial(replicas.groups.eligible, model, stamp.rule, stamp.origin, connectors=profile.connectors)
        left = eligible()
        if not left:
            return self._unserved(model, stamp)
        if profile.appends:
            left &= replicas.appending
            if not left:
                return RefusalReason.UNKNOWN_MODEL, f"no engine here goes on with what another one of `{model}` began"
        identity, fit = request_class.identity, request_class.fit
        if identity is not None:
            left &= eligible(identity=identity)
            if not left:
                return RefusalReason.UNKNOWN_MODEL, f"no engine here goes on with the same model behind `{model}`"
        if fit is not None and not (fit.preferred and left & eligible(fit=fit)):
            return RefusalReason.TOO_LONG, f"no pool here takes {fit.need_tokens} tokens"
        return None

    def _unserved(self, model: ModelName, stamp: ResidencyStamp) -> tuple[RefusalReason, str]:
        if self._core.replicas.groups.closed_to(model, stamp.rule, stamp.origin):
            why = f"what serves `{model}` here was adopted, and takes nothing that arrived in {stamp.origin.region}"
            return RefusalReason.RESIDENCY_NOT_ACCEPTED, why
        return RefusalReason.UNKNOWN_MODEL, f"no replica here may serve `{model}` for it"

    def class_of(
        self,
        profile: RequestProfile,
        rule: PlaceRule,
        hops: Hops,
        origin: Place | None = None,
        *,
        size: Size | None = None,
    ) -> RequestClass:
        """Class of a request, which it shares with those that may go to exactly the same targets. `origin`: place
        where a forward arrived first. `size`: where the model's pools are told apart by it."""
        pinned = self._core.pinned(profile.follows) if profile.follows else None
        fresh = self._class_for(
            profile.model,
            rule,
            hops,
            pinned,
            origin,
            is_control=profile.is_control,
            connectors=profile.connectors,
            size=None if pinned is not None else size,
            appends=profile.appends,
            identity=None if profile.identity is None else needed_by(self._core, profile),
            service_class=_served_as(profile, pinned),
            goes_first=profile.service_class is _INTERACTIVE and not profile.is_control,
            is_patient=profile.is_patient and _served_as(profile, pinned) is not _INTERACTIVE,
        )
        if len(self._classes) >= _CLASSES_MAX:
            self._classes.clear()
        return self._classes.setdefault(fresh, fresh)

    def rule_of(self, profile: RequestProfile) -> PlaceRule:
        """Places where a client's own request may be processed: the policy's rule, narrowed by that of the key if it
        has one."""
        return self._rule_for(profile.tenant, profile.process)

    def models_for(self, tenant: TenantName, process: PlaceRule | None) -> list[ModelName]:
        """Models that a client of this tenant could request and be served; `process` is the rule of its key."""
        if not self.ingress_of(tenant, process).allowed:
            return []
        rule = self._rule_for(tenant, process)
        names = dict.fromkeys([*self._core.replicas.groups.models, *self._core.peers.models()])
        return [name for name in names if self._core.placer.may_ever_serve(self._class_for(name, rule, _NO_HOPS))]

    def batch_rooms(self, model: ModelName, tenant: TenantName, process: PlaceRule | None) -> dict[RegionName, int]:
        """Requests of class `batch` by a client of this tenant that could run at once beside what runs, by each region
        that may serve them. `process` is the rule of its key."""
        if self._core.draining or not self.ingress_of(tenant, process).allowed:
            return {}
        rule = self._rule_for(tenant, process)
        return self._core.placer.batch_rooms(self._class_for(model, rule, _NO_HOPS, service_class=ServiceClass.BATCH))

    def first_served(
        self, names: Sequence[ModelName], tenant: TenantName, process: PlaceRule | None, follows: str
    ) -> ModelName | None:
        """First of these models that is served at present where the client's request may go, however busy; else the
        first that may be served again; else the first that is served anywhere, whose rejection then tells the client
        why. None: no gateway serves any. For a request that follows a stored response, the models of that response's
        target are preferred."""
        rule = self._rule_for(tenant, process)
        pinned = self._core.pinned(follows) if follows else None
        if pinned is not None:
            names = [name for name in names if self._serves_at(pinned, name)] or names
        request_classes = [self._class_for(name, rule, _NO_HOPS) for name in names]
        for is_served in (self._core.placer.serves_now, self._core.placer.may_ever_serve, self._is_known):
            for request_class in request_classes:
                if is_served(request_class):
                    return request_class.model
        return None

    def _serves_at(self, target: Target, model: ModelName) -> bool:
        if target.kind is TargetKind.REPLICA:
            replica = self._core.replicas.get(ReplicaId(target.id))
            return replica is not None and model in replica.spec.models
        peer = self._core.peers.get(GatewayId(target.id))
        return peer is not None and any(capacity.model == model for capacity in peer.served)

    def _is_known(self, request_class: RequestClass) -> bool:
        model = request_class.model
        return (
            self._core.replicas.groups.serves(model) or self._core.peers.serves(model) or self._core.is_awaited(model)
        )

    def origin_that_counts(self, origin: Place) -> Place | None:
        """Place where a request arrived, if any replica limits the origins it accepts; else None."""
        return origin if self._core.replicas.groups.ask_origins else None

    def _class_for(
        self,
        model: ModelName,
        rule: PlaceRule,
        hops: Hops,
        pinned: Target | None = None,
        origin: Place | None = None,
        *,
        is_control: bool = False,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        size: Size | None = None,
        appends: bool = False,
        identity: NeededIdentity | None = None,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        goes_first: bool = False,
        is_patient: bool = False,
    ) -> RequestClass:
        """Class of a request with these properties. Without a usable policy, or while forwarding is stopped, it may not
        be forwarded, not even inside the region."""
        is_open = not self._core.policy.closed_reason and self._core.forwarding_stop is None
        anyhow = RequestClass(
            model,
            rule,
            may_stay_in_region=is_open and hops.may_stay_in_region,
            may_cross_regions=is_open and hops.may_cross_regions,
            pinned=pinned,
            is_control=is_control,
            connectors=connectors,
            origin=self.origin_that_counts(origin or self._core.place),
            appends=appends,
            identity=identity,
            service_class=service_class,
            goes_first=goes_first,
            is_patient=is_patient,
        )
        return anyhow if size is None else replace(anyhow, fit=size.fit_in(anyhow))

    def _rule_for(self, tenant: TenantName, process: PlaceRule | None) -> PlaceRule:
        rule = processing_rule(self._core.policy, tenant)
        return rule if process is None else both(rule, process)


def _served_as(profile: RequestProfile, pinned: Target | None) -> ServiceClass:
    """Service class that a request is served as. One that has a single target, costs nothing, or appends to an answer
    is interactive and yields to no other."""
    if pinned is not None or profile.is_control or profile.appends:
        return ServiceClass.INTERACTIVE
    return profile.service_class
