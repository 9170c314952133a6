"""Engines' own word about their KV caches, as placement follows it: it corrects the index of sent prompts and the
policy's books, and stands in the record."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gateway.core.placement.fleet import Fleet, ToldMatch
from gateway.core.placement.policy import Policy
from gateway.core.vocabulary import PREFIX_HASH_BYTES, Costs, Figure, RequestProfile

ENGINE_BLOCKS: Final = "engine_blocks"
"""Figure of a replica whose engine says that it holds a part of the prompt."""


class EngineWord:
    """Word of the own replicas' engines."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        self._fleet = fleet
        self.policy = policy
        """Placement policy in force."""
        self.match: ToldMatch | None = None
        """Set by a feature that hears from own replicas' engines how much of a prompt they hold."""

    def shorten(self, chain: bytes, slot: int, blocks: int) -> None:
        """Forget what an engine says it has removed: all but the first blocks of a prompt."""
        self._fleet.replica_index.retract(chain, slot, blocks)
        self.policy.shortened(chain, slot, blocks)

    def hold(self, chain: bytes, slot: int, now_ns: int) -> None:
        """Note that an engine says it holds this beginning of a prompt."""
        if not self.policy.wants_prefixes():
            return
        index = self._fleet.replica_index
        if index.match(chain, 1 << slot).blocks * PREFIX_HASH_BYTES < len(chain):
            index.insert(chain, slot, now_ns)
        self.policy.holds(chain, slot, now_ns)

    def empty(self, slot: int) -> None:
        """Forget all prompts of a replica: its engine has cleared its cache."""
        self._fleet.replica_index.remove_target(slot)
        self.policy.emptied(slot)

    def on_record(self, profile: RequestProfile, slot: int, costs: Costs | None) -> Costs | None:
        """Return a replica's costs with the blocks of the prompt that its engine says it holds."""
        told = 0 if costs is None or self.match is None else self.match(profile, slot)
        if costs is None or not told:
            return costs
        return replace(costs, further=(*costs.further, Figure(ENGINE_BLOCKS, told, "blocks")))
