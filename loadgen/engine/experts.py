"""What reading experts adds to the steps of decode workers: each step reads every expert that any of its tokens picks,
once, whatever their number (ELDR §3.1). Pure arithmetic over probabilities; it knows nothing of time or requests' text.

Each request picks each expert of each layer with a probability of its own, independently of the others and in every
step alike. So the mean number of distinct ones is Σ 1 − Π (1 − p), which changes only when somebody enters or leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Packed = npt.NDArray[np.float32]
_AFRESH_AFTER = 512
"""Changes after which a sum is made anew: what was added and taken away leaves rounding behind."""
_MOST = 1.0 - 1e-6
"""Of a probability: an expert that is always picked would never leave a sum of logarithms."""


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """Of one model on one kind of engine."""

    layers: int
    experts: int
    layer_ns: float
    """What a layer's experts take besides: launching kernels, routing tokens."""
    expert_ns: float
    """What reading one expert's weights takes: its bytes over the bandwidth."""
    ranks: int = 1
    """Engines that share the experts of each layer out among themselves (expert parallelism): a layer takes as long as
    the one of them that reads most."""


def log_absence(probabilities: npt.NDArray[np.floating]) -> Packed:
    """log(1 − p), flat: what a request adds to a batch."""
    packed: Packed = np.log1p(-np.minimum(probabilities, _MOST)).astype(np.float32).ravel()
    return packed


class ExpertLoad:
    """The experts of one batch, or of the batches of a group that shares its experts."""

    def __init__(self, costs: ExpertCosts, placement: npt.NDArray[np.integer] | None = None) -> None:
        """`placement`: by layer and expert, the rank that holds it; those of equal numbers in a row, if not given."""
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
        """By layer and expert, how likely a step reads it."""
        if self._active is None:
            self._active = -np.expm1(self._sum).reshape(self.costs.layers, self.costs.experts)
        return self._active

    def active_mean(self) -> float:
        """Distinct experts a step and layer."""
        return float(self.active().sum()) / self.costs.layers

    def step_ns(self) -> int:
        """What they add to a step. With several ranks, of the means of each: the largest of some that vary is a little
        more than the largest mean."""
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
