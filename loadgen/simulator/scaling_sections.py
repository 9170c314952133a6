"""Sections of a scenario about replicas that are started and stopped during a run, and the mode in which a run scales
them.

Values are checked; nothing is decided.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.core.features.scaling.vocabulary import PoolSettings, ScalingSettings
from gateway.core.vocabulary import ModelName
from loadgen.simulator.sections import Count, CountOrNone, Duration, Moment, ScenarioSection, Share

_SECOND_NS = 1_000_000_000
_DEFAULTS = ScalingSettings()


class ScalingMode(StrEnum):
    """Decision-maker for the number of replicas of a region."""

    NONE = "none"
    """All replicas of the scenario run all the time."""
    REGION = "region"
    """Each region decides for itself."""
    MESH = "mesh"
    """All regions decide together, like gateways that tell each other their spare capacity."""


class ScalingSection(ScenarioSection):
    """Scaling of replicas. A region's `replicas` are then its maximum."""

    concurrency: Count
    """Requests that one replica should run at once."""
    begin: CountOrNone = 1
    """Replicas of each region at the start."""
    replicas_min: CountOrNone = 1
    start_delay: Duration = 120 * _SECOND_NS
    """Delay between the order of a replica and its first healthy probe; the replica is paid for meanwhile."""
    interval: Duration = 15 * _SECOND_NS
    window: Duration = _DEFAULTS.window_ns
    drain: Duration = _DEFAULTS.drain_ns
    headroom: Annotated[float, Field(ge=0)] = _DEFAULTS.headroom
    slack_share: Share = _DEFAULTS.slack_share
    up_after: Moment = _DEFAULTS.up_after_ns
    down_after: Duration = _DEFAULTS.down_after_ns
    down_every: Duration = _DEFAULTS.down_every_ns
    start_max: Duration = _DEFAULTS.start_max_ns
    reach: Duration = _DEFAULTS.reach_ns
    patience: Duration = _DEFAULTS.patience_ns
    distrust: Duration = _DEFAULTS.distrust_ns

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.begin < self.replicas_min:
            raise ValueError("begin: is below replicas_min")
        return self

    def settings(self, mode: ScalingMode) -> ScalingSettings:
        return ScalingSettings(
            mesh=mode is ScalingMode.MESH,
            window_ns=self.window,
            drain_ns=self.drain,
            headroom=self.headroom,
            slack_share=self.slack_share,
            up_after_ns=self.up_after,
            down_after_ns=self.down_after,
            down_every_ns=self.down_every,
            start_max_ns=self.start_max,
            reach_ns=self.reach,
            patience_ns=self.patience,
            distrust_ns=self.distrust,
        )

    def pool(self, model: str, replicas_max: int) -> PoolSettings:
        return PoolSettings(ModelName(model), self.concurrency, replicas_max, replicas_min=self.replicas_min)
