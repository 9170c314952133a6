"""Number of replicas that a region wants of one pool, from plan to plan: quick to rise, slow to fall, without
oscillation."""

from __future__ import annotations

from gateway.core.features.scaling.planner import RegionPlan
from gateway.core.features.scaling.vocabulary import PoolSettings, ScalingReason, ScalingSettings


class Steady:
    """Rises by everything missing once more has been needed for `up_after`. Falls by one once fewer have sufficed for
    `down_after`, and by another `down_every` after the last change in any region (stabilisation windows, as in
    Kubernetes' HorizontalPodAutoscaler, where the one for scaling down is five minutes as well)."""

    def __init__(self, settings: ScalingSettings, wanted: int, now_ns: int) -> None:
        self.wanted = wanted
        self.changed_ns = now_ns
        self._settings = settings
        self._short_since_ns: int | None = None
        self._calm_since_ns: int | None = None
        self._began_ns = now_ns
        self._moved_ns = now_ns
        """Time of the last change in any region."""

    def find(self, ready: int, now_ns: int) -> None:
        """Adopt a larger number of existing replicas during the first `down_after` after the start: engines may take a
        while to be observed, and none can have been removed yet."""
        if ready > self.wanted and now_ns - self._began_ns < self._settings.down_after_ns:
            self._change(ready, now_ns)

    def keep_within(self, least: int, most: int, now_ns: int) -> bool:
        """Apply the operator's bounds at once. True: the number has changed."""
        wanted = min(max(self.wanted, least), most)
        if wanted == self.wanted:
            return False
        self._change(wanted, now_ns)
        return True

    def others_moved(self, now_ns: int) -> None:
        """Note a change in another region: the next removal waits for its effect."""
        self._moved_ns = now_ns

    def follow(self, wanted: int, now_ns: int) -> None:
        """Follow the number of another gateway, which speaks for the region."""
        self._short_since_ns = self._calm_since_ns = None
        if wanted != self.wanted:
            self._change(wanted, now_ns)

    def take(self, verdict: RegionPlan, any_may_lose: bool, pool: PoolSettings, now_ns: int) -> ScalingReason:
        """Apply one plan. The flag says whether some region of the mesh could lose a replica."""
        if verdict.replicas > self.wanted:
            return self._rise(verdict, now_ns)
        self._short_since_ns = None
        if any_may_lose:
            return self._cool(verdict, now_ns)
        self._calm_since_ns = None
        if verdict.missing and self.wanted >= pool.replicas_max:
            return ScalingReason.AT_MOST
        return _at_rest(verdict)

    def _rise(self, verdict: RegionPlan, now_ns: int) -> ScalingReason:
        self._calm_since_ns = None
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
        if now_ns - self._short_since_ns < self._settings.up_after_ns:
            return ScalingReason.WAITS
        self._change(verdict.replicas, now_ns)
        return ScalingReason.NEIGHBOURS if verdict.is_for_others else ScalingReason.LOAD

    def _cool(self, verdict: RegionPlan, now_ns: int) -> ScalingReason:
        if self._calm_since_ns is None:
            self._calm_since_ns = now_ns
        if not verdict.may_lose:
            return _at_rest(verdict)
        is_calm = now_ns - self._calm_since_ns >= self._settings.down_after_ns
        if not is_calm or now_ns - self._moved_ns < self._settings.down_every_ns:
            return ScalingReason.COOLS
        self._change(self.wanted - 1, now_ns)
        return ScalingReason.IDLE

    def _change(self, wanted: int, now_ns: int) -> None:
        self.wanted = wanted
        self.changed_ns = self._moved_ns = now_ns
        self._short_since_ns = None


def _at_rest(verdict: RegionPlan) -> ScalingReason:
    if verdict.borrowed:
        return ScalingReason.BORROWS
    return ScalingReason.LENDS if verdict.lent else ScalingReason.STEADY
