"""Shadow overflow: records the forwards that overflow would make, without making them."""

from __future__ import annotations

from gateway.core.kernel.effects import RecordShadow
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.requests import RequestState


class Shadow(Feature):
    """Records, once per request, the forward that overflow would have made. Shadow forwards use no capacity, so bursts
    are overstated."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def is_on(self) -> bool:
        return self._core.placer.may_shadow

    def before_choice(self, request: RequestState, now_ns: int, /) -> None:
        """Record before placing under a policy that weighs full replicas against other regions: it may keep the request
        for a full replica of its own."""
        if self._core.placer.takes_full_replicas:
            self._record(request, now_ns)

    def must_wait(self, request: RequestState, now_ns: int, /) -> None:
        if not self._core.placer.takes_full_replicas:
            self._record(request, now_ns)

    def newcomer_waits(self, request: RequestState, now_ns: int, /) -> None:
        """Record a forward for a request that has just arrived: overflow would not let it wait behind others."""
        self._record(request, now_ns)

    def _record(self, request: RequestState, now_ns: int) -> None:
        """Record the forward that overflow would make at this moment, unless one was recorded before."""
        if request.record.shadow is not None:
            return
        placement = self._core.placer.shadow(request, now_ns)
        if placement is not None:
            decision = self._core.decision_of(request, placement, now_ns)
            shadow = RecordShadow(request.request_id, placement.state.target, decision)
            request.record.shadow = shadow
            self._core.effects.append(shadow)
