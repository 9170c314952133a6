"""Events of disaggregated pools: what teaches the decode tier."""

from __future__ import annotations

from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictors.arrays import (
    ExactMatchArrays,
    LearnedArrays,
    PredictorArrays,
    SurvivalArrays,
)
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import PoolName


class DecodeHistoryRestored(FeatureEvent, frozen=True):
    """History of the requests that a pool decoded before this process began."""

    pool: PoolName
    ended: tuple[Ended, ...]
    added: int
    """Requests ever recorded, with those not kept."""
    ended_max: int
    """Number of requests to remember from this event on."""
    horizon_steps: int = BalanceConfig().horizon_steps
    """Horizon of the pool's predictor until the pool is assigned."""


class PredictorFitted(FeatureEvent, frozen=True):
    """Fitted predictor of output lengths for one pool: exactly one kind of arrays, already checked."""

    pool: PoolName
    until_ns: int
    """Time at which the arrays become too old to use."""
    survival: SurvivalArrays | None = None
    exact_match: ExactMatchArrays | None = None
    learned: LearnedArrays | None = None
    is_better: bool = False
    """The arrays foresee loads better than expecting every request to stay, on the history that they were fitted to."""

    @property
    def arrays(self) -> PredictorArrays:
        arrays = self.survival or self.exact_match or self.learned
        assert arrays is not None, "one of them is there"
        return arrays
