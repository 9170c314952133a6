"""Events of disaggregated pools: what teaches the decode tier."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.features.disaggregated.predictors.arrays import (
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    SurvivalArrays,
)
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import PoolName, RequestId


class DecodeProgress(Struct, frozen=True):
    """Progress of one decode leg."""

    request_id: RequestId
    attempt: int
    output_tokens: int
    """Tokens since its first; an estimate where the engine reports only events."""


class ProgressSampled(FeatureEvent, frozen=True):
    """Answer to SampleProgress: each decode leg of that pool that has begun."""

    pool: PoolName
    progress: tuple[DecodeProgress, ...]


class DecodeHistoryRestored(FeatureEvent, frozen=True):
    """History of the requests that a pool decoded before this process began."""

    pool: PoolName
    ended: tuple[Ended, ...]
    added: int
    """Requests ever recorded, with those not kept."""
    ended_max: int
    """Number of requests to remember from this event on."""


class PredictorFitted(FeatureEvent, frozen=True):
    """Fitted predictor of output lengths for one pool: exactly one kind of arrays, already checked."""

    pool: PoolName
    until_ns: int
    """Time at which the arrays become too old to use."""
    survival: SurvivalArrays | None = None
    exact_match: ExactMatchArrays | None = None
    learned: LearnedArrays | None = None

    @property
    def arrays(self) -> PredictorArrays:
        arrays = self.survival or self.exact_match or self.learned
        assert arrays is not None, "one of them is there"
        return arrays
