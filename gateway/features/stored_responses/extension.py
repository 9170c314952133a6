"""Stored responses, outside the core."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host
from gateway.features.stored_responses.words import StoredResponseWords


class StoredResponsesExtension(Extension):
    """Explains requests that refer to stored responses."""

    name = "stored_responses"
    words = StoredResponseWords()

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing: there is no state outside the core."""
