"""Interface of the discovery sources. Names only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.config.targets import ReplicaConfig

Report = Callable[[tuple[ReplicaConfig, ...]], None]
"""Callback that gets the whole set of replicas whenever it may have changed; never a part of it, and never an empty set
because the source knows nothing."""


class ReplicaSource(Protocol):
    """Place where replicas are announced: a DNS name or an object of an orchestrator."""

    @property
    def name(self) -> str:
        """Name for logs; unique among the sources of a gateway."""
        ...

    async def run(self, report: Report) -> None:
        """Report replicas until cancelled. Failures outside the gateway are retried and logged here; only a defect of
        the gateway is raised.

        A source that loses sight of its replicas reports nothing, so that the gateway keeps those that it knew.
        """
        ...

    async def first_look(self) -> None:
        """Wait until the source has looked once, whether or not it found any replica."""
        ...
