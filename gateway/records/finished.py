"""Hand-over of finished requests: each request's owner hands it over once, with the record that the core has kept of
it, and every consumer reads that record.

It decides nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.kernel.residency import ResidencyPolicy, may_process
from gateway.core.vocabulary import ModelName, RequestProfile
from gateway.request.legs import RequestSummary

TakeFinished = Callable[[RequestProfile, EndRequest, RequestSummary, RequestRecord | None], None]
"""Callback, called once for each finished request of this gateway. The record is None if the request came after a crash
of the core. After a crash the end may be another than the record's, which is unset then."""

ServesModel = Callable[[ModelName], bool]
"""Predicate: a model is served at present, here or at a peer."""


class FinishedRequests:
    """Consumers of finished requests, in the order of their registration."""

    def __init__(self) -> None:
        self._takers: list[TakeFinished] = []

    def hand_to(self, take: TakeFinished) -> None:
        """Register a consumer."""
        self._takers.append(take)

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Hand a request to all consumers. A consumer that fails does not stop the others; the first failure is raised
        at the end."""
        failures: list[Exception] = []
        for take in self._takers:
            try:
                take(profile, end, summary, record)
            except Exception as error:  # noqa: BLE001 - raised below, once all consumers were called
                failures.append(error)
        if failures:
            raise failures[0]


def names_served_model(profile: RequestProfile, record: RequestRecord | None, serves: ServesModel) -> bool:
    """True if the model of a request may be written down. A model that no gateway serves is only text that a client
    wrote.

    A request that was placed named a model that was served then. Requests that follow a stored response are the
    exception: they go to where the response is, whatever model they name.
    """
    was_placed = record is not None and bool(record.legs) and not profile.follows
    return was_placed or serves(profile.model)


def rule_applied(profile: RequestProfile, record: RequestRecord, leg: LegState) -> tuple[ResidencyPolicy, str]:
    """Policy that applied to a leg, and in a few words why it allowed the place. A forward is judged by its origin's
    policy, a client's request by this gateway's policy at that moment and by its key."""
    policy = leg.policy if record.origin is None else record.origin.policy
    why = may_process(policy, profile.tenant, leg.place).why
    is_narrowed = record.origin is None and profile.process is not None
    return policy, f"{why}, and the key's rule allows it" if is_narrowed else why
