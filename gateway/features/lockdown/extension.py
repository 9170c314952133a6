"""Lockdown in a running gateway: the kernel obeys the order, and the desk keeps it."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host


class LockdownExtension(Extension):
    """Adds nothing: operators' command and the row on the status are loaded without a gateway."""

    name = "lockdown"

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing."""
