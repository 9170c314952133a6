"""Tenants' limits' own event."""

from __future__ import annotations

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import RequestId


class TokensSettled(FeatureEvent, frozen=True):
    """Tokens of its tenant that a request has used, prompt and output together. Sent once, after its end, for each
    request that tokens were reserved for."""

    request_id: RequestId
    tokens: int
