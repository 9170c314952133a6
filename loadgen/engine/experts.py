"""Cost that reading experts adds to the steps of decode workers: each step reads every expert that any of its tokens
picks, once, whatever their number (ELDR §3.1). Pure arithmetic over probabilities, without time or requests' text.

Each request picks each expert of each layer with a probability of its own, independently of the others and in every
step alike. The mean number of distinct experts is therefore Σ 1 − Π (1 − p), which changes only when a request enters
or leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Packed = npt.NDArray[np.float32]
_AFRESH_AFTER = 512
"""Changes after which a sum is recomputed, because additions and subtractions accumulate rounding errors."""
_MOST = 1.0 - 1e-6
"""Upper bound of a probability: an expert that is always picked would never leave a sum of logarithms."""


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """Costs of the experts of one model on one kind of engine."""

    layers: int
    experts: int
    layer_ns: float
    """Nanoseconds a layer's experts take besides reading weights: launching kernels, routing tokens."""
    expert_ns: float
    """Nanoseconds to read one expert's weights: its bytes over the bandwidth."""
    ranks: int = 1
    """Engines that share the experts of each layer (expert parallelism): a layer takes as long as the engine that reads
    most."""


def log_absence(probabilities: npt.NDArray[np.floating]) -> Packed:
    """Contribution of a request to a batch's sum: log(1 − p), flat."""
    packed: Packed = np.log1p(-np.minimum(probabilities, _MOST)).astype(np.float32).ravel()
    return packed


class ExpertLoad:
    """Experts of one batch, or of the batches of a group that shares its experts."""

    def __init__(self, costs: ExpertCosts, placement: npt.NDArray[np.integer] | None = None) -> None:
        """`placement`: by layer and expert, the rank that holds it; if absent, each rank holds an equal run of
        consecutive ones."""
        self.costs = costs
        self._sum: Floats = np.zeros(costs.layers * costs.experts)
        self._members: dict[str, Packed] = {}
        self._changes = 0
        self._active: Floats | None = None
        self._order: npt.NDArray[np.intp] | None = None
        if placement is not None:
            self._order = np.argsort(placement, axis=1, kind="stable")

    def __len__(self) -> int:
        return len(self._members)

    def enter(self, request_id: str, absence: Packed) -> None:
        self._members[request_id] = absence
        self._sum += absence
        self._active = None

    def leave(self, request_id: str) -> None:
        self._sum -= self._members.pop(request_id)
        self._active = None
        self._changes += 1
        if self._changes >= _AFRESH_AFTER or not self._members:
            self._changes = 0
            self._sum[:] = 0.0
            for absence in self._members.values():
                self._sum += absence

    def active(self) -> Floats:
        """Probability that a step reads an expert, by layer and expert."""
        if self._active is None:
            self._active = -np.expm1(self._sum).reshape(self.costs.layers, self.costs.experts)
        return self._active

    def active_mean(self) -> float:
        """Mean number of distinct experts read per step and layer."""
        return float(self.active().sum()) / self.costs.layers

    def step_ns(self) -> int:
        """Nanoseconds that experts add to a step. With several ranks, the largest of the ranks' means is taken, a
        little less than the mean of the largest."""
        costs = self.costs
        if not self._members:
            return 0
        active = self.active()
        if costs.ranks == 1:
            read = float(active.sum())
        else:
            placed = active if self._order is None else np.take_along_axis(active, self._order, axis=1)
            read = float(placed.reshape(costs.layers, costs.ranks, -1).sum(axis=2).max(axis=1).sum())
        return round(costs.layers * costs.layer_ns + read * costs.expert_ns)
