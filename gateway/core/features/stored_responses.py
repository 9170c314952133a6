"""Stored responses: which target has which, for the requests that refer to them."""

from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.events import Event, ResponseStored
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel


class FollowStoredResponses(Feature):
    """Notes the targets of stored responses. Requests that refer to one have that target alone, which admission reads
    from `stored_responses` of the state."""

    def __init__(self, core: Kernel) -> None:
        self._core = core

    def take_in(self, event: Event, now_ns: int, /) -> bool:  # noqa: ARG002
        if not isinstance(event, ResponseStored):
            return False
        attempt = self._core.attempt_of(event.request_id, event.attempt)
        leg = None if attempt is None else attempt.legs.get(event.leg)
        if leg is not None:
            self._core.stored_responses.put(event.key, leg.target)
        return True

    def configure(self, config: CoreConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._core.stored_responses.configure(config.placement.stored_responses_max)
