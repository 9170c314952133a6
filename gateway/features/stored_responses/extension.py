"""Stored responses, outside the core."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host

_STORED_RESPONSE_BYTES = 512


class StoredResponsesExtension(Extension):
    """Counts the memory of stored responses."""

    name = "stored_responses"

    @staticmethod
    def placement_bytes_max(config: GatewayConfig, /) -> int:
        return config.core.placement.stored_responses_max * _STORED_RESPONSE_BYTES

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing: there is no state outside the core."""
