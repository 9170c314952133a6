"""Goodput: how many requests of each service class were served as promised, and how many attempts were interrupted. It
counts, and decides nothing."""

from __future__ import annotations

from gateway.core.kernel.requests import RequestState
from gateway.core.vocabulary import Outcome, RequestProfile, ServiceClass, Word

_OF_NO_ACCOUNT = frozenset({Outcome.ABANDONED, Outcome.CLIENT_ERROR})
"""Outcomes caused by the client, which are not counted."""


class Promise(Word):
    """Fulfilment of what a class was promised."""

    KEPT = "kept"
    """Complete answer, first token in time."""
    LATE = "late"
    """Complete answer, but its first token came after the class's `first_token`."""
    FAILED = "failed"
    """No complete answer: it failed, its deadline passed, or it waited too long."""
    REFUSED = "refused"
    """Rejected by the gateway."""


class Goodput:
    """Counts of one gateway's own clients; a forwarded request counts at its origin, and an interrupted attempt where
    it ran."""

    def __init__(self) -> None:
        self.counts: dict[tuple[ServiceClass, Promise], int] = {}
        self.interrupted: dict[ServiceClass, int] = {}
        """Attempts that were ended so that an interactive request has the slot, by class."""

    def count(self, service_class: ServiceClass, promise: Promise) -> None:
        key = service_class, promise
        self.counts[key] = self.counts.get(key, 0) + 1

    def gave_way(self, profile: RequestProfile) -> None:
        """Count an attempt that was ended so that an interactive request has its slot."""
        self.interrupted[profile.service_class] = self.interrupted.get(profile.service_class, 0) + 1

    def refused(self, profile: RequestProfile) -> None:
        """Count a client's own request that was not admitted."""
        if not profile.is_control:
            self.count(profile.service_class, Promise.REFUSED)

    def ended(self, request: RequestState, outcome: Outcome, first_token_max_ns: int | None, now_ns: int) -> None:
        """Count a request that ended. `first_token_max_ns`: the objective of its class; None: it has none."""
        if request.origin_gateway_id is not None or request.profile.is_control or outcome in _OF_NO_ACCOUNT:
            return
        self.count(request.profile.service_class, _kept(request, outcome, first_token_max_ns, now_ns))


def _kept(request: RequestState, outcome: Outcome, first_token_max_ns: int | None, now_ns: int) -> Promise:
    if outcome.startswith("rejected_"):
        return Promise.REFUSED
    if outcome is not Outcome.COMPLETED:
        return Promise.FAILED
    if first_token_max_ns is None:
        return Promise.KEPT
    first_ns = now_ns if request.first_token_ns is None else request.first_token_ns
    return Promise.KEPT if first_ns - request.arrived_ns <= first_token_max_ns else Promise.LATE
