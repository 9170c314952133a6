"""What a region wants of one pool, from one plan to the next: sooner more than fewer, and never to and fro."""

from __future__ import annotations

from gateway.core.scaling.planner import Verdict
from gateway.core.scaling.vocabulary import PoolSettings, Reason, ScalingSettings


class Steady:
    """Up once more has been missing for `up_after`, by all of it. Down by one once fewer have done for `down_after`,
    and by another one `down_every` after the last change that anybody made (stabilisation windows, as in Kubernetes'
    HorizontalPodAutoscaler, where the one for scaling down is five minutes as well)."""

    def __init__(self, settings: ScalingSettings, wanted: int, now_ns: int) -> None:
        self.wanted = wanted
        self.changed_ns = now_ns
        self._settings = settings
        self._short_since_ns: int | None = None
        self._calm_since_ns: int | None = None
        self._began_ns = now_ns
        self._moved_ns = now_ns
        """When anybody last changed what it wants."""

    def find(self, ready: int, now_ns: int) -> None:
        """So many are there. For as long as nobody could have been sent away yet they are what is wanted: engines may
        take a while to be heard after a start of ours."""
        if ready > self.wanted and now_ns - self._began_ns < self._settings.down_after_ns:
            self._change(ready, now_ns)

    def keep_within(self, least: int, most: int, now_ns: int) -> bool:
        """What an operator's bounds ask for is done at once. True: it has changed."""
        wanted = min(max(self.wanted, least), most)
        if wanted == self.wanted:
            return False
        self._change(wanted, now_ns)
        return True

    def others_moved(self, now_ns: int) -> None:
        """What another region wants has changed: whoever goes next waits for what comes of it."""
        self._moved_ns = now_ns

    def follow(self, wanted: int, now_ns: int) -> None:
        """Another gateway speaks for the region."""
        self._short_since_ns = self._calm_since_ns = None
        if wanted != self.wanted:
            self._change(wanted, now_ns)

    def take(self, verdict: Verdict, somebody_may_lose: bool, pool: PoolSettings, now_ns: int) -> Reason:
        """One plan. `somebody_may_lose`: one replica of the mesh could go, here or elsewhere."""
        if verdict.replicas > self.wanted:
            return self._rise(verdict, now_ns)
        self._short_since_ns = None
        if somebody_may_lose:
            return self._cool(verdict, now_ns)
        self._calm_since_ns = None
        if verdict.missing and self.wanted >= pool.replicas_max:
            return Reason.AT_MOST
        return _at_rest(verdict)

    def _rise(self, verdict: Verdict, now_ns: int) -> Reason:
        self._calm_since_ns = None
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
        if now_ns - self._short_since_ns < self._settings.up_after_ns:
            return Reason.WAITS
        self._change(verdict.replicas, now_ns)
        return Reason.NEIGHBOURS if verdict.is_for_others else Reason.LOAD

    def _cool(self, verdict: Verdict, now_ns: int) -> Reason:
        if self._calm_since_ns is None:
            self._calm_since_ns = now_ns
        if not verdict.may_lose:
            return _at_rest(verdict)
        is_calm = now_ns - self._calm_since_ns >= self._settings.down_after_ns
        if not is_calm or now_ns - self._moved_ns < self._settings.down_every_ns:
            return Reason.COOLS
        self._change(self.wanted - 1, now_ns)
        return Reason.IDLE

    def _change(self, wanted: int, now_ns: int) -> None:
        self.wanted = wanted
        self.changed_ns = self._moved_ns = now_ns
        self._short_since_ns = None


def _at_rest(verdict: Verdict) -> Reason:
    if verdict.borrowed:
        return Reason.BORROWS
    return Reason.LENDS if verdict.lent else Reason.STEADY
