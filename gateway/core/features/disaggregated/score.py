"""F-score of BalanceRoute (§3.1 and §4.1): the value of giving a worker Δ more tokens. Computation only.

    F_g(Δ) = α·Γ·Δ − β·Σ_h γ^h·(Δ − m_g(h))^+        Γ = Σ_h γ^h, over the steps h = 0 … H

m_g(h) is the distance of the worker's load from the largest of its group h steps from now. With H = 0, α = 1 and β = G,
F is the decrease of the imbalance Σ_g (L_max − L_g): each token is worth one while it fits, and costs G − 1 beyond.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

INFINITE = float("inf")


class Score:
    """F-score of one worker: piecewise linear and concave in Δ, rising up to its peak and not beyond."""

    __slots__ = ("_kinks", "_penalty", "_reward", "_sums", "_weights", "peak")

    def __init__(
        self, margins: list[float], discounts: list[float], reward_weight: float, penalty_weight: float
    ) -> None:
        """`margins` and `discounts`: m_g(h) and γ^h for each step."""
        self._reward = reward_weight * sum(discounts)
        self._penalty = penalty_weight
        pairs = sorted(zip(margins, discounts, strict=True))
        self._kinks = [margin for margin, _ in pairs]
        self._weights = [0.0]
        self._sums = [0.0]
        self.peak = INFINITE
        """Smallest Δ beyond which the score does not rise."""
        weight = total = 0.0
        for margin, discount in pairs:
            weight += discount
            total += discount * margin
            self._weights.append(weight)
            self._sums.append(total)
            if self.peak == INFINITE and penalty_weight * weight >= self._reward:
                self.peak = margin

    def at(self, delta: float) -> float:
        """Score of `delta` tokens. O(log H)."""
        beyond = bisect_left(self._kinks, delta)
        return self._reward * delta - self._penalty * (self._weights[beyond] * delta - self._sums[beyond])

    def best_of(self, weights: list[int]) -> int:
        """Index of the highest-scoring weight of a list sorted lightest first; of equal scores, the heavier. O(log
        n)."""
        above = bisect_right(weights, self.peak)
        if above == 0:
            return 0
        if above < len(weights) and self.at(weights[above]) >= self.at(weights[above - 1]):
            return above
        return above - 1
