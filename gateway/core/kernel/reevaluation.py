"""Re-evaluation of requests under changed rules and fleets: waiting ones get the class they have by then, or end."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.kernel.feasibility import why_never_again
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import Phase, RequestState
from gateway.core.kernel.residency import refusal_of
from gateway.core.kernel.retries import class_with_failures
from gateway.core.vocabulary import Outcome, Place, PlaceRule, RequestProfile, ResidencyStamp, ServiceClass


class Reevaluation:
    """Evaluates requests again by the policy, the config and the fleet in force."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def reevaluate_waiting(self) -> None:
        """Evaluate all waiting requests by the rules in force. They end, or return to the queue in the class they have
        by then; those that no known target could ever serve end too."""
        for request in list(self._core.waiting):
            self._core.stop_waiting(request)
            self.reevaluate(request)
            if request.phase is not Phase.ENDED:
                self._core.start_waiting(request)
        self.reject_hopeless()

    def reject_hopeless(self) -> None:
        """End each waiting request that no known target could ever serve. All requests of a class are alike in this, so
        that it costs O(classes) where none is ended."""
        for request in self._core.waiting.all_heads():
            hopeless: RequestState | None = request
            held = request.held
            while hopeless is not None and (never := why_never_again(self._core, hopeless)) is not None:
                self._core.end(hopeless, *never)
                hopeless = (
                    self._core.waiting.head_of(request.request_class)
                    if held is None
                    else self._core.waiting.held_head_of(held.slot, request.request_class, is_cold=held.is_cold)
                )

    def reevaluate(self, request: RequestState) -> None:
        """Evaluate a request that is out of the queue by the policy in force; it may end here."""
        if request.origin_gateway_id is None:
            self._evaluate_own(request)
        else:
            self._evaluate_forwarded(request)

    def class_in_force(self, request: RequestState, profile: RequestProfile) -> RequestClass | None:
        """Class that a running request would have if it waited again now, as this profile; None: the rules in force
        would end it."""
        if request.origin_gateway_id is None:
            ingress = self._core.admission.ingress_of(profile.tenant, profile.process)
            if not ingress.allowed:
                return None
            return self._class_under(request, profile, self._core.admission.rule_of(profile), self._core.place)
        if refusal_of(self._core.policy, request.stamp) is not None or self._core.forwarding_stop is not None:
            return None
        return self._class_under(request, profile, request.stamp.rule, request.stamp.origin)

    def _evaluate_own(self, request: RequestState) -> None:
        """Evaluate a client's own request by the residency policy: it ends, or gets a new stamp and class."""
        tenant = request.profile.tenant
        ingress = self._core.admission.ingress_of(tenant, request.profile.process)
        if not ingress.allowed:
            self._core.end(request, Outcome.REJECTED_RESIDENCY_INGRESS, ingress.why)
            return
        request.stamp = ResidencyStamp(
            self._core.place, tenant, self._core.admission.rule_of(request.profile), self._core.policy.digest
        )
        self._classify_again(request)

    def _evaluate_forwarded(self, request: RequestState) -> None:
        """Evaluate a request that was forwarded to this gateway: it fails if its stamp is not accepted or forwarding is
        stopped, else it gets a new class."""
        refusal, stop = refusal_of(self._core.policy, request.stamp), self._core.forwarding_stop
        if refusal is not None or stop is not None:
            why = stop.words if refusal is None and stop is not None else refusal[1] if refusal is not None else ""
            self._core.end(request, Outcome.FAILED_BEFORE_FIRST_BYTE, f"no longer accepted here: {why}")
            return
        self._classify_again(request)

    def _classify_again(self, request: RequestState) -> None:
        stamp = request.stamp
        request.request_class = self._class_under(request, request.profile, stamp.rule, stamp.origin)

    def _class_under(
        self, request: RequestState, profile: RequestProfile, rule: PlaceRule, origin: Place
    ) -> RequestClass:
        """Class that this rule and the present fleet make of the request with this profile. It keeps its failed
        targets, its pinned target and a promotion."""
        old = request.request_class
        if request.size is None:
            request.size = self._core.size_of(profile)
        fresh = self._core.admission.class_of(profile, rule, request.hops, origin, size=request.size)
        gave_up_peers = request.refusals >= max(self._core.config.attempt.refusals_max, 1)
        return replace(
            fresh,
            may_stay_in_region=fresh.may_stay_in_region and not gave_up_peers,
            may_cross_regions=fresh.may_cross_regions and not gave_up_peers,
            failed_replicas=old.failed_replicas,
            failed_peers=old.failed_peers,
            pinned=old.pinned,
            fit=None if old.pinned is not None else fresh.fit,
            service_class=min(old.service_class, fresh.service_class, key=_rank),  # may have been promoted
        )

    def pools_changed(self) -> None:
        """Fit waiting requests to changed pools. All are evaluated again if a feature says that they may fit into other
        pools now; else only those that no target could serve are ended."""
        for feature in self._core.hooks.pools_changed:
            if feature.pools_changed():
                self.reevaluate_waiting()
                return
        self.reject_hopeless()

    def find_failures_again(self) -> None:
        """Update request classes after slots changed hands: failed targets may have moved or gone, and the place where
        a request arrived may count for its replicas or no longer do so."""
        for request in self._core.requests.values():
            request_class = class_with_failures(self._core, request) if request.failed_at else request.request_class
            origin = self._core.admission.origin_that_counts(request.stamp.origin)
            if origin != request_class.origin:
                request_class = replace(request_class, origin=origin)
            if request_class == request.request_class:
                continue
            waits = request.is_queued
            if waits:
                self._core.stop_waiting(request)
            request.request_class = request_class
            if waits:
                self._core.start_waiting(request)


def _rank(service_class: ServiceClass) -> int:
    return service_class.rank
