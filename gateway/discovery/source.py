"""What every way of finding replicas offers to whoever owns them. Names only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.config.targets import ReplicaConfig

Report = Callable[[tuple[ReplicaConfig, ...]], None]
"""Told the whole set whenever it may have changed; never a part of it, and nothing when nothing is known."""


class ReplicaSource(Protocol):
    """One place where replicas are announced: a name in DNS, an object of an orchestrator."""

    @property
    def name(self) -> str:
        """For logs; unique among the sources of a gateway."""
        ...

    async def run(self, report: Report) -> None:
        """Until cancelled. What the world does wrong is retried and logged here; only a fault of ours is raised.

        A source that loses sight of its replicas reports nothing: whoever owns them goes on with those it knew.
        """
        ...

    async def first_look(self) -> None:
        """Until the source has looked once, whether or not it found anything."""
        ...
