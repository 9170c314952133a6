"""Common part of all targets, replicas and peers: a slot, the last observation, and the health that this gateway's own
legs reveal.

Sets of targets are bit masks over slots, updated at each change, so that no decision visits every target. Observations
and fullness are specific to each kind of target and handled by subclasses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from gateway.core.kernel.attempts import Breaker, BreakerState, Ramp, TargetPause
from gateway.core.kernel.bits import with_bit
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.timers import Timer, TimerKind, Timers
from gateway.core.vocabulary import LegResult, PeerSpec, ReplicaSpec, RequestId, Standing, Target

LegKey = tuple[RequestId, int, int]
"""Request, attempt number and leg number."""
Spec = ReplicaSpec | PeerSpec
AVAILABLE: Final = Standing.AVAILABLE
"""Module constant because Python 3.11 looks enumeration members up slowly, and every observation needs this one."""
_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_DISTRUSTED_FOR = frozenset({LegResult.FAILED, LegResult.BUSY, LegResult.REFUSED})

_SpecOf_co = TypeVar("_SpecOf_co", bound=Spec, covariant=True)
NO_LIMIT: Final = 1 << 60


class TargetState(Generic[_SpecOf_co]):
    """One target, and this gateway's legs there."""

    __slots__ = (
        "accepting",
        "backlog_bytes",
        "breaker",
        "counts_legs",
        "credit",
        "detail",
        "distrusted_since_ns",
        "healthy",
        "home",
        "in_flight",
        "legs_max",
        "listed",
        "prefilling",
        "ramp",
        "rest",
        "slot",
        "spec",
        "standing",
        "standing_when_lost",
        "target",
        "timer",
        "unreflected",
    )

    def __init__(
        self,
        home: Targets[Any, Any],
        spec: _SpecOf_co,
        slot: int,
        *,
        target: Target,
        timer_kind: TimerKind,
        standing_when_lost: Standing,
        config: KernelConfig,
    ) -> None:
        self.home = home
        """Set that contains this target; it must be told when a leg starts or ends here."""
        self.spec = spec
        self.slot = slot
        self.target = target
        self.timer = Timer(timer_kind, target.id)
        self.healthy = False
        """The target answered when last asked."""
        self.accepting = True
        """False while the target itself says that it takes no requests."""
        self.detail = ""
        self.in_flight = 0
        self.counts_legs = False
        """The number of own legs influences the standing, whatever breaker and ramp say."""
        self.legs_max = NO_LIMIT
        """Own legs at once, where their number alone makes the target full."""
        self.credit = NO_LIMIT
        """Own legs not reflected in the last observation, up to which they do not influence the standing."""
        self.unreflected: dict[LegKey, int] = {}
        """Own legs that the last observation cannot have counted, with the start time of each. At a replica, a leg
        leaves with its first token; at a peer, only a heartbeat removes it."""
        self.prefilling: dict[LegKey, int] = {}
        """Own legs without a first token, each with the prompt bytes that the target was not known to have cached."""
        self.backlog_bytes = 0
        """Sum of `prefilling`: prompt bytes that the target has to prefill before it has answered all of these legs."""
        self.distrusted_since_ns: int | None = None
        """Time at which a leg failed or was refused: the target is unavailable until a later observation clears it."""
        self.breaker = Breaker(config.attempt)
        self.ramp = Ramp(config.attempt)
        self.rest = TargetPause(config.attempt)
        self.standing_when_lost = standing_when_lost
        self.standing = standing_when_lost
        """Standing as of the last change or deadline of this target."""
        self.listed = True
        """False once the target has left the assignment; running legs may still end here."""

    @property
    def legs_left(self) -> int:
        """Further own legs that the limits on these allow the target, if it is available; at least 1."""
        if self.breaker.state is not _CLOSED or (self.counts_legs and self.legs_max == NO_LIMIT):
            return 1
        limit = self.legs_max if self.ramp.limit is None else min(self.legs_max, self.ramp.limit)
        return max(1, limit - self.in_flight)

    @property
    def first_unread_bytes(self) -> int:
        """Uncached prompt bytes of the oldest own leg without a first token; 0: there is none."""
        for unread_bytes in self.prefilling.values():
            return unread_bytes
        return 0


_State = TypeVar("_State", bound=TargetState[Spec])
_Spec = TypeVar("_Spec", bound=Spec)


class Targets(Generic[_State, _Spec]):
    """All targets of one kind that this gateway has."""

    def __init__(self, config: KernelConfig, timers: Timers) -> None:
        self._config = config
        self._timers = timers
        self._by_id: dict[str, _State] = {}
        self._by_slot: dict[int, _State] = {}
        self._free_slots: list[int] = []
        self._slots_used = 0
        self.usable = 0
        """Mask of the available targets, before any request-specific check."""
        self.version = 0
        """Changes with the set, so that masks derived from it can be cached."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[_State]:
        return iter(self._by_id.values())

    def get(self, target_id: str) -> _State | None:
        return self._by_id.get(target_id)

    def at(self, slot: int) -> _State:
        return self._by_slot[slot]

    def mask_of(self, targets: Iterable[Target]) -> int:
        """Mask of those of `targets` that are in the set."""
        mask = 0
        for target in targets:
            state = self._by_id.get(target.id)
            if state is not None and state.target == target:
                mask |= 1 << state.slot
        return mask

    # Changes

    def configure(self, config: KernelConfig, now_ns: int) -> None:
        self._config = config
        for state in self:
            state.breaker.configure(config.attempt)
            state.ramp.configure(config.attempt)
            state.rest.configure(config.attempt)
            self.refresh(state, now_ns)

    def lose(self, target_id: str, detail: str, now_ns: int) -> None:
        state = self._by_id.get(target_id)
        if state is not None:
            state.healthy = False
            state.detail = detail
            self.refresh(state, now_ns)

    def started(
        self,
        state: _State,
        key: LegKey,
        now_ns: int,
        uncached_bytes: int = 0,
        *,
        is_whole: bool = False,  # noqa: ARG002
    ) -> None:
        """Record the start of a leg. `is_whole`: its answer comes in one piece, and no first token is heard of."""
        state.in_flight += 1
        state.prefilling[key] = uncached_bytes
        state.backlog_bytes += uncached_bytes
        state.unreflected[key] = now_ns
        self._note_change(state)
        self._legs_changed(state, now_ns)

    def first_token(self, state: _State, key: LegKey, now_ns: int) -> None:
        state.backlog_bytes -= state.prefilling.pop(key, 0)
        if state.unreflected.pop(key, None) is not None:
            self._note_change(state)
            self._legs_changed(state, now_ns)

    def ended(
        self,
        state: _State,
        key: LegKey,
        result: LegResult,
        now_ns: int,
        took_ns: int,  # noqa: ARG002
        *,
        has_failed_elsewhere: bool = False,
    ) -> None:
        """Record the end of a leg, `took_ns` after its start. `has_failed_elsewhere`: its request has failed at another
        target."""
        assert state.in_flight > 0, f"{state.target}: a leg ended that was not in flight"
        state.in_flight -= 1
        state.backlog_bytes -= state.prefilling.pop(key, 0)
        if state.unreflected.pop(key, None) is not None:
            self._note_change(state)
        if state.breaker.record(result, now_ns, has_failed_elsewhere=has_failed_elsewhere):
            state.ramp.start(now_ns)
        if result in _DISTRUSTED_FOR:
            state.distrusted_since_ns = now_ns
        self._legs_changed(state, now_ns)

    def wake(self, target_id: str, now_ns: int) -> None:
        """Handle a deadline of this target: staleness, end of a rest, an open breaker, or a step of its ramp."""
        state = self._by_id.get(target_id)
        if state is not None:
            self.refresh(state, now_ns)

    def _legs_changed(self, state: _State, now_ns: int) -> None:
        """Refresh a target whose legs have changed, unless legs do not influence its standing: it is available, counts
        no legs, and has no breaker, ramp, credit or distrust against it."""
        if (
            state.standing is not AVAILABLE
            or state.counts_legs
            or len(state.unreflected) > state.credit
            or state.breaker.state is not _CLOSED
            or state.ramp.limit is not None
            or state.distrusted_since_ns is not None
        ):
            self.refresh(state, now_ns)

    def refresh(self, state: _State, now_ns: int) -> None:
        """Recompute one target's standing and the masks, and set its timer for the next change that time alone may
        cause."""
        if not state.listed:
            return
        state.breaker.wake(now_ns)
        state.ramp.wake(now_ns)
        standing = self._standing(state, now_ns)
        if standing is not state.standing:
            state.standing = standing
            self._note_standing(state)
        self._arm(state, now_ns)

    # Specific to each kind

    def _make(self, spec: _Spec, slot: int) -> _State:
        raise NotImplementedError

    def _stale_ns(self, state: _State) -> int:
        """Time from which the target's last observation is stale; 0 if there has been none."""
        raise NotImplementedError

    def _note_change(self, state: _State) -> None:
        """Note a change that cached answers may depend on."""

    # Internals

    def _own(self, wanted: dict[str, _Spec]) -> tuple[list[_State], list[_State]]:
        """Own exactly these targets. Return those that joined and those that left; a target whose spec changed does
        both."""
        left = [state for target_id, state in self._by_id.items() if wanted.get(target_id) != state.spec]
        for state in left:
            self._drop(state)
        joined = [self._add(spec) for target_id, spec in wanted.items() if target_id not in self._by_id]
        self.version += 1
        return joined, left

    def _add(self, spec: _Spec) -> _State:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slots_used
            self._slots_used += 1
        state = self._make(spec, slot)
        self._by_id[state.target.id] = state
        self._by_slot[slot] = state
        return state

    def _drop(self, state: _State) -> None:
        state.listed = False
        del self._by_id[state.target.id]
        del self._by_slot[state.slot]
        self.usable &= ~(1 << state.slot)
        self._free_slots.append(state.slot)
        self._timers.cancel(state.timer)

    def _believe(self, state: _State, measured_ns: int, travel_ns: int = 0) -> None:
        """Apply an observation measured at that time: it clears an earlier distrust, and counts the own legs that had
        reached the target by then, `travel_ns` after they were sent."""
        if state.distrusted_since_ns is not None and measured_ns >= state.distrusted_since_ns:
            state.distrusted_since_ns = None
        if not state.unreflected:
            return
        for key, sent_ns in list(state.unreflected.items()):
            if sent_ns + travel_ns < measured_ns:
                del state.unreflected[key]
                self._note_change(state)

    def _stays_available(self, state: _State, now_ns: int) -> bool:
        """Shortcut for `refresh` after an observation that reports nothing negative. True: the target stays available
        and only its staleness timer had to be set."""
        if state.standing is not AVAILABLE:
            return False
        if state.breaker.state is not _CLOSED or state.ramp.limit is not None:
            return False
        stale_ns = self._stale_ns(state)
        if now_ns >= stale_ns:
            return False
        self._timers.set(state.timer, stale_ns)
        return True

    def _standing(self, state: _State, now_ns: int) -> Standing:
        """Standing before any request-specific check."""
        if not state.healthy:
            return state.standing_when_lost
        if now_ns >= self._stale_ns(state):
            return Standing.STALE
        if not state.accepting:
            return Standing.NOT_ACCEPTING
        if state.distrusted_since_ns is not None or now_ns < state.rest.until_ns:
            return Standing.DISTRUSTED
        if not state.breaker.allows(state.in_flight):
            return Standing.BREAKER
        if not state.ramp.allows(state.in_flight):
            return Standing.RAMP
        return AVAILABLE

    def _note_standing(self, state: _State) -> None:
        bit = 1 << state.slot
        self.usable = with_bit(self.usable, bit, is_set=state.standing is AVAILABLE)
        self._note_change(state)

    def _arm(self, state: _State, now_ns: int) -> None:
        """Set the timer to the first moment at which time alone may change the standing."""
        deadlines: list[int] = []
        if now_ns < (stale_ns := self._stale_ns(state)):
            deadlines.append(stale_ns)
        if now_ns < state.rest.until_ns:
            deadlines.append(state.rest.until_ns)
        if state.breaker.state is _OPEN:
            deadlines.append(state.breaker.open_until_ns)
        if state.ramp.limit is not None:
            deadlines.append(state.ramp.next_step_ns)
        if deadlines:
            self._timers.set(state.timer, min(deadlines))
        else:
            self._timers.cancel(state.timer)
