"""Stored responses' own event."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import RequestId


class ResponseStored(FeatureEvent, frozen=True):
    """The engine stores this leg's answer under a key; requests that refer to it must go to the same target."""

    request_id: RequestId
    attempt: int
    leg: int
    key: str
