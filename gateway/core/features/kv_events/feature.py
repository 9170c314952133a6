"""KV events: what engines say that their KV caches store and remove corrects what placement believes of them.

An engine's word only changes where a prompt is expected to be read already: a wrong one makes a worse placement and
nothing else. Where it cannot be tied to a prompt, the gateway's own estimate stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.engine_cache import Answer, EngineCache, TieResult
from gateway.core.features.kv_events.events import ChangeKind, EngineTold, EngineUnheard, UnheardReason
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent, LegEnded
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.placement.prefix_index import PrefixIndex
from gateway.core.vocabulary import PREFIX_HASH_BYTES, Extra, LegResult, LegRole, ReplicaId, RequestProfile, TargetKind

_TIMER: Final = "kv_events"


class KvEvents(Feature):
    """Caches of the engines that tell of theirs."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._config = KvEventsConfig()
        self._caches: dict[ReplicaId, EngineCache] = {}
        """Caches of the engines that are heard."""
        self._bounds = (0, 0)
        self._told = PrefixIndex(0, 0)
        """Beginnings of prompts that engines say they hold, by the slot of their replica."""
        self._timer = Timer(TimerKind.FEATURE, _TIMER)
        self.results: Counter[TieResult] = Counter()
        """Answers whose blocks were looked for, by what became of it."""
        self.shortened = 0
        """Prompts of which an engine has removed some."""
        self.unheard: Counter[UnheardReason] = Counter()

    def is_on(self) -> bool:
        return any(state.spec.tells_cache for state in self._core.replicas)

    # Calls of the driver

    def hears(self, replica_id: ReplicaId) -> bool:
        """Return true if the engine's word counts at present."""
        return replica_id in self._caches

    def caches(self) -> Iterator[tuple[ReplicaId, EngineCache]]:
        yield from self._caches.items()

    def described(self, replica_id: ReplicaId) -> dict[str, object]:
        """State of an engine's cache, JSON-ready."""
        cache = self._caches.get(replica_id)
        if cache is None:
            return {"is_heard": False}
        return {"is_heard": True, "blocks": len(cache), "tied": cache.tied, "unplaced": cache.unplaced}

    # Inputs

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        match event:
            case EngineTold():
                self._hear(event, now_ns)
            case EngineUnheard():
                self._unhear(event.replica_id, event.reason)
            case _:
                return False
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:
        self._config = all_of(config).kv_events
        for replica_id, cache in list(self._caches.items()):
            cache.blocks_max = self._config.blocks_max
            if len(cache) > cache.blocks_max:
                self._unhear(replica_id, UnheardReason.BLOCKS)
        bounds = config.placement.prefix_index_bytes_max, config.placement.prefix_ttl_ns
        if bounds != self._bounds:
            self._bounds = bounds
            self._told = PrefixIndex(*bounds)
            self._told.expire(now_ns)

    def assign(
        self,
        event: AssignmentApplied,  # noqa: ARG002
        joined: list[ReplicaState],  # noqa: ARG002
        left: list[ReplicaState],
        now_ns: int,  # noqa: ARG002
        /,
    ) -> None:
        for state in left:
            self._caches.pop(state.spec.replica_id, None)
            self._told.remove_target(state.slot)
        self._core.placer.engines.match = self._told_blocks if self.is_on() else None

    def wake(self, timer: str, now_ns: int, /) -> None:
        """Tie blocks to the answers whose events must have come."""
        if timer != _TIMER:
            return
        for replica_id, cache in self._caches.items():
            self._settle(replica_id, cache, now_ns)
        self._told.expire(now_ns)
        self._set_timer(after_ns=now_ns)

    # Steps

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:  # noqa: ARG002
        """Ask for token counts, by which an answer's blocks are found."""
        if ReplicaId(leg.target.id) in self._caches and Extra.USAGE not in order.extras:
            order.extras = (*order.extras, Extra.USAGE)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:
        """Expect the blocks of an answer. A prompt that follows a stored response begins with text that its chain
        lacks."""
        profile = request.profile
        if leg.target.kind is not TargetKind.REPLICA or leg.role is not LegRole.WHOLE or not leg.state.listed:
            return
        cache = self._caches.get(ReplicaId(leg.target.id))
        if cache is None or event.result is not LegResult.COMPLETED or not profile.prefix or profile.follows:
            return
        if not event.prompt_tokens or event.output_tokens is None:
            return
        counts, first_token_ns = (event.prompt_tokens, event.output_tokens), leg.first_token_ns or 0
        if cache.expect(Answer(profile, *counts, leg.started_ns, now_ns, first_token_ns=first_token_ns)):
            self._set_timer()
        else:
            self.results[TieResult.FULL] += 1

    def violations(self) -> list[tuple[str, str]]:
        broken = [("beginnings that engines told are consistent", detail) for detail in self._told.check()]
        for replica_id, cache in self._caches.items():
            broken += [("an engine's cache is consistent", f"{replica_id}: {each}") for each in cache.violations()]
            if self._core.replicas.get(replica_id) is None:
                broken.append(("an engine's cache goes with its replica", replica_id))
        return broken

    # Internals

    def _hear(self, event: EngineTold, now_ns: int) -> None:
        state = self._core.replicas.get(event.replica_id)
        if state is None:
            return
        cache = self._caches.get(event.replica_id)
        if event.is_first:
            self._told.remove_target(state.slot)
            cache = self._caches[event.replica_id] = EngineCache(self._config.blocks_max)
        if cache is None:
            return
        for change in event.changes:
            match change.kind:
                case ChangeKind.STORED:
                    if not cache.store(change, now_ns):
                        self._unhear(event.replica_id, UnheardReason.BLOCKS)
                        return
                case ChangeKind.REMOVED:
                    for prompt in cache.remove(change):
                        self.shortened += 1
                        self._told.retract(prompt.chain, state.slot, prompt.blocks)
                        self._core.placer.engines.shorten(prompt.chain, state.slot, prompt.blocks)
                case ChangeKind.CLEARED:
                    cache = self._caches[event.replica_id] = EngineCache(self._config.blocks_max)
                    self._told.remove_target(state.slot)
                    self._core.placer.engines.empty(state.slot)

    def _unhear(self, replica_id: ReplicaId, reason: UnheardReason) -> None:
        """Let the gateway's own estimate count alone for a replica."""
        if self._caches.pop(replica_id, None) is None:
            return
        self.unheard[reason] += 1
        state = self._core.replicas.get(replica_id)
        if state is not None:
            self._told.remove_target(state.slot)

    def _settle(self, replica_id: ReplicaId, cache: EngineCache, now_ns: int) -> None:
        state = self._core.replicas.get(replica_id)
        assert state is not None, "a cache goes with its replica"
        for settled in cache.settle(now_ns):
            self.results[settled.result] += 1
            if settled.blocks:
                chain = settled.chain[: settled.blocks * PREFIX_HASH_BYTES]
                self._told.insert(chain, state.slot, now_ns)
                self._core.placer.engines.hold(chain, state.slot, now_ns)

    def _set_timer(self, after_ns: int = 0) -> None:
        """Wake when the next answer is due: later than this, so that other work is done between long searches."""
        due = [cache.due_ns for cache in self._caches.values() if cache.due_ns is not None]
        if due:
            self._core.timers.set_earlier(self._timer, max(min(due), after_ns + 1))

    def _told_blocks(self, profile: RequestProfile, slot: int) -> int:
        """Blocks of the prompt that the engine of the replica in the slot says it holds."""
        return self._told.match(profile.prefix, 1 << slot).blocks


def kv_events_of(core: Kernel) -> KvEvents:
    """Feature of a core that was made with it."""
    return next(each for each in core.features if isinstance(each, KvEvents))
