"""Disaggregated pools, outside the core."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from gateway.features.disaggregated.words import DecodeWords
from gateway.features.extension import Extension, Host


class DisaggregatedExtension(Extension):
    """Explains the choice of decode workers."""

    name = "disaggregated"
    words = DecodeWords()

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing yet."""
