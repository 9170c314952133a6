"""Adoption: another gateway serves replicas of this one for a time, and requests for their models wait here meanwhile
rather than being told that there is no such model."""

from __future__ import annotations

from gateway.core.kernel.events import AssignmentApplied
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.vocabulary import ModelName


class Adoption(Feature):
    """Knows the models of replicas in this gateway's config that another gateway serves for the moment."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._away: frozenset[ModelName] = frozenset()

    def is_on(self) -> bool:
        return bool(self._away)

    def assign(
        self,
        event: AssignmentApplied,
        joined: list[ReplicaState],  # noqa: ARG002
        left: list[ReplicaState],  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
        /,
    ) -> None:
        self._away = frozenset(event.away)

    def awaits(self, model: ModelName, /) -> bool:
        return model in self._away
