"""Cache digests: tells peers which prompt prefixes the own replicas hold, and finds what peers tell for placement.

A digest only changes where a request is expected to be read already: a wrong one makes a worse placement and nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.features.cache_digests.events import DigestHeard, DigestPart
from gateway.core.features.cache_digests.holdings import Holdings, group_under
from gateway.core.features.cache_digests.telling import ByteBudget, Telling, part_bytes
from gateway.core.features.cache_digests.told import ToldDigest
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent, LegEnded
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LegRole,
    PeerSpec,
    ReplicaId,
    ReplicaObservation,
    RequestProfile,
    TargetKind,
)

_TIMER: Final = "cache_digests"
_BYTES_PER_TOKEN: Final = 4
_PROMPTS_SHARE: Final = 0.75
"""Share of a replica's cache that prompts are taken to fill: answers and running requests need the rest."""


class CacheDigests(Feature):
    """Holdings of the own replicas, and the digests of the peers."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._config = CacheDigestsConfig()
        self._holdings = Holdings(self._config.fingerprints_max)
        self._told: dict[GatewayId, ToldDigest] = {}
        self._budgets: dict[GatewayId, ByteBudget] = {}
        self._timer = Timer(TimerKind.FEATURE, _TIMER)
        self.told_bytes = 0
        """Bytes of parts told to all peers."""

    def is_on(self) -> bool:
        return self._config.enabled

    # Calls of the driver

    def next_part(self, telling: Telling, peer: PeerSpec, now_ns: int) -> DigestPart | None:
        """Part of the digest that a peer is told next; None while the feature is off or a lockdown stops forwarding,
        and for a gateway that is no peer."""
        if not self._config.enabled or self._core.peers.get(peer.gateway_id) is None:
            return None
        if self._core.forwarding_stop is not None:
            return None
        budget = self._budgets.setdefault(peer.gateway_id, ByteBudget())
        bytes_max = budget.earn(now_ns, self._config.send_rate_max_bytes)
        self._holdings.expire(now_ns - self._core.config.placement.prefix_ttl_ns)
        part = telling.next_part(self._holdings, self._core.policy, peer.place, bytes_max)
        budget.spend(part_bytes(part))
        self.told_bytes += part_bytes(part)
        return part

    def is_to_be_asked(self, gateway_id: GatewayId, now_ns: int) -> bool:
        """True if the peer is to be asked to tell its whole digest anew."""
        told = self._told.get(gateway_id)
        return told is not None and told.is_to_be_asked(now_ns)

    def held(self) -> int:
        """Number of fingerprints that peers can be told of the own replicas."""
        return len(self._holdings)

    def told(self) -> Iterator[tuple[GatewayId, ToldDigest]]:
        yield from self._told.items()

    # Inputs

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        if not isinstance(event, DigestHeard):
            return False
        if self._config.enabled and self._core.peers.get(event.gateway_id) is not None:
            told = self._told.get(event.gateway_id)
            if told is None:
                told = self._told[event.gateway_id] = ToldDigest()
            told.hear(event.part, now_ns, self._config.fingerprints_max)
            self._core.timers.set_earlier(self._timer, now_ns + self._config.age_max_ns)
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        new = all_of(config).cache_digests
        if new == self._config:
            return
        self._config = new
        self._holdings = Holdings(new.fingerprints_max)
        self._told.clear()
        self._core.placer.match_told(self._told_blocks if new.enabled else None)

    def assign(
        self,
        event: AssignmentApplied,
        joined: list[ReplicaState],  # noqa: ARG002
        left: list[ReplicaState],
        now_ns: int,  # noqa: ARG002
        /,
    ) -> None:
        for state in left:
            self._holdings.forget(state.slot)
        known = {peer.gateway_id for peer in event.peers}
        self._told = {gateway_id: told for gateway_id, told in self._told.items() if gateway_id in known}
        self._budgets = {gateway_id: each for gateway_id, each in self._budgets.items() if gateway_id in known}

    def wake(self, timer: str, now_ns: int, /) -> None:
        """Drop the digests of peers that have said nothing for too long."""
        if timer != _TIMER:
            return
        age_max_ns = self._config.age_max_ns
        self._told = {each: told for each, told in self._told.items() if now_ns < told.heard_ns + age_max_ns}
        if self._told:
            self._core.timers.set(self._timer, min(told.heard_ns for told in self._told.values()) + age_max_ns)

    # Steps

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:  # noqa: ARG002
        """Forget what a replica that does not answer holds: a new process of its engine has an empty cache."""
        for each in observations:
            if not each.healthy:
                self._forget(each.replica_id)

    def leg_answered(self, request: RequestState, leg: LegState, now_ns: int, /) -> None:
        self._prefilled(request, leg, now_ns)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:
        if event.result is LegResult.COMPLETED and leg.first_token_ns is None:
            self._prefilled(request, leg, now_ns)

    def describe(self, now_ns: int, /) -> dict[str, object]:
        if not self._config.enabled:
            return {}
        peers = {
            gateway_id: {"fingerprints": len(told), "age_ms": (now_ns - told.heard_ns) // 1_000_000}
            for gateway_id, told in self._told.items()
        }
        return {"cache_digests": {"fingerprints": len(self._holdings), "peers": peers}}

    def violations(self) -> list[tuple[str, str]]:
        broken = [("cache digests are consistent", detail) for detail in self._holdings.violations()]
        for gateway_id, told in self._told.items():
            if len(told) > self._config.fingerprints_max:
                broken.append(("a peer's digest has a bound", f"{gateway_id}: {len(told)} fingerprints"))
            if self._core.peers.get(gateway_id) is None:
                broken.append(("a digest goes with its peer", gateway_id))
        return broken

    # Internals

    def _told_blocks(self, profile: RequestProfile, slot: int) -> int:
        """Blocks of the prompt that the peer in the slot says its replicas hold."""
        told = self._told.get(self._core.peers.at(slot).spec.gateway_id)
        return 0 if told is None else told.blocks_of(profile.prefix, profile.prefix_blocks)

    def _forget(self, replica_id: ReplicaId) -> None:
        state = self._core.replicas.get(replica_id)
        if state is not None:
            self._holdings.forget(state.slot)

    def _prefilled(self, request: RequestState, leg: LegState, now_ns: int) -> None:
        """Note that an own replica holds the request's prompt. A prompt that follows a stored response begins with text
        that its chain lacks, so no other prompt begins like it."""
        profile, state = request.profile, leg.state
        if leg.target.kind is not TargetKind.REPLICA or leg.role is LegRole.DECODE or not state.listed:
            return
        if not profile.prefix or profile.follows:
            return
        assert isinstance(state, ReplicaState), "its target is a replica"
        group = group_under(profile.tenant, request.stamp.rule, [peer.spec.place for peer in self._core.peers])
        if not self._holdings.has_room_for(group):
            return
        blocks_max = int(state.kv_tokens * _BYTES_PER_TOKEN * _PROMPTS_SHARE) // profile.prefix_block_bytes
        self._holdings.record(group, profile.prefix, profile.prefix_blocks, state.slot, now_ns, blocks_max=blocks_max)


def digests_of(core: Kernel) -> CacheDigests:
    """Feature of a core that was made with it."""
    return next(each for each in core.features if isinstance(each, CacheDigests))
