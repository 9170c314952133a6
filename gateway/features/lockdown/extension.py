"""Lockdown, outside the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import click

from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host
from gateway.features.lockdown.cli import lockdown
from gateway.features.lockdown.status import LockdownView


class LockdownExtension(Extension):
    """Gives operators the command and the row on the status."""

    name = "lockdown"
    commands: ClassVar[Sequence[click.Command]] = (lockdown,)
    views: ClassVar = {"lockdown_order": LockdownView}

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing: the kernel obeys the order, and its store is the gateway's own."""
