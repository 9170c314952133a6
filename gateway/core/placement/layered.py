"""Base of policies that are asked layer by layer: own replicas and sibling gateways first, which compete by prefix,
then other regions when no target in this region is available (SkyWalker, Algorithm 1)."""

from __future__ import annotations

from abc import abstractmethod

from mypy_extensions import mypyc_attr

from gateway.core.placement.policy import Choice, Offer, Policy, is_worth_following
from gateway.core.vocabulary import PlacementReason, RequestProfile


@mypyc_attr(allow_interpreted_subclasses=True)
class Layered(Policy):
    """Policy that picks one target of a mask in each layer; it never holds a request."""

    @abstractmethod
    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        """Pick an own replica from a mask that is never empty."""

    @abstractmethod
    def choose_peer(self, profile: RequestProfile, mask: int, is_remote: bool, /) -> Choice:
        """Pick a peer from a mask that is never empty: either all in this region or all in other regions. An own
        replica may win against a sibling."""

    def falls_back_to_full(self) -> bool:
        """Return true if a full replica is chosen when no target is available; else the request waits."""
        return False

    def weigh(self, profile: RequestProfile, offer: Offer, _now_ns: int, /) -> Choice | None:
        """Choose a free own replica or a sibling gateway, else a gateway of another region."""
        local, others = offer.free, offer.siblings
        choice = self._in_region(profile, local, others)
        if choice is None and offer.remotes:
            others = offer.remotes
            choice = self._peer(profile, others, is_remote=True)
        elif choice is None:
            others = 0
        if choice is None and self.falls_back_to_full():
            local = offer.replicas & ~offer.free
            choice = self._replica(profile, local)
        if choice is not None:
            choice.candidates = local.bit_count() + others.bit_count()
        return choice

    def _in_region(self, profile: RequestProfile, local: int, siblings: int) -> Choice | None:
        if not siblings:
            return self._replica(profile, local)
        sibling = self._peer(profile, siblings, is_remote=False)
        replica = self._replica(profile, local)
        if replica is None:
            return sibling
        known_there, known_here = sibling.matched_blocks, replica.matched_blocks
        follows = is_worth_following(profile, known_there, self.config.explore_below_share)
        return sibling if known_there > known_here and follows else replica

    def _replica(self, profile: RequestProfile, mask: int) -> Choice | None:
        return self.choose_replica(profile, mask) if mask else None

    def _peer(self, profile: RequestProfile, mask: int, *, is_remote: bool) -> Choice:
        choice = self.choose_peer(profile, mask, is_remote)
        choice.is_peer = True
        if choice.reason is None:
            choice.reason = PlacementReason.REMOTE_POLICY if is_remote else PlacementReason.SIBLING_OVERFLOW
        return choice
