"""Lockdown: an operator stops all forwarding, in both directions, and may cut the streams that cross gateways."""

from __future__ import annotations

from gateway.core.features.lockdown.events import LockdownChanged
from gateway.core.kernel.events import FeatureEvent
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import Phase, RequestState
from gateway.core.kernel.state import ForwardingStop
from gateway.core.vocabulary import Outcome, RefusalReason, TargetKind

_STOP = ForwardingStop(RefusalReason.LOCKDOWN, "an operator has stopped all forwarding")


class Lockdown(Feature):
    """Applies an order by setting or clearing the core's `forwarding_stop`, which placement and admission read. It has
    no steps of its own, so it never counts as on."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, LockdownChanged):
            return False
        self._changed(event)
        return True

    def describe(self, now_ns: int, /) -> dict[str, object]:  # noqa: ARG002
        return {"lockdown": self._core.forwarding_stop is not None}

    def _changed(self, event: LockdownChanged) -> None:
        """Start or end a lockdown. On start, forwards without a first token come back and wait here; with `cut`,
        running streams that cross gateways end too."""
        core = self._core
        core.forwarding_stop = _STOP if event.active else None
        core.rules_version += 1
        core.reevaluate_waiting()
        if not event.active:
            return
        for request in list(core.requests.values()):
            if request.phase is Phase.RUNNING or (event.cut and request.phase is Phase.ANSWERING):
                self._take_back(request)

    def _take_back(self, request: RequestState) -> None:
        """Close the request's legs that cross gateways, in either direction, without blame for a target: a forward to a
        peer is taken back, a request forwarded to this gateway ends."""
        attempt = request.attempt
        assert attempt is not None, "it runs"
        detail = _STOP.words
        legs = [leg for leg in attempt.legs.values() if not leg.is_stopping]
        if request.origin_gateway_id is not None:
            began = request.phase is Phase.ANSWERING
            for leg in legs:
                self._core.stop_leg(request, attempt, leg, detail)
            if legs or attempt.is_between_legs:
                outcome = Outcome.FAILED_MIDSTREAM if began else Outcome.FAILED_BEFORE_FIRST_BYTE
                self._core.end(request, outcome, detail)
            return
        for leg in legs:
            if leg.target.kind is TargetKind.PEER:
                leg.stop_detail = detail
                leg.is_withdrawn = True
                self._core.stop_leg(request, attempt, leg, detail)
