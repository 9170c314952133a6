"""KV events' own events: an engine's word about its KV cache. Tokens are dropped at the edge: only hashes come here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import ReplicaId, Word


class ChangeKind(Word):
    """Kind of a change in an engine's cache."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


class CacheTier(Word):
    """Memory in which an engine holds a block."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


class UnheardReason(Word):
    """Reason why an engine's word does not count at present."""

    GAP = "gap"
    """Messages were lost, and the engine cannot repeat them."""
    FLOOD = "flood"
    """The engine sent more bytes than it may."""
    MALFORMED = "malformed"
    """A message could not be read."""
    BLOCKS = "blocks"
    """The engine told of more blocks than are kept."""
    STOPPED = "stopped"
    """The gateway follows the engine no longer, or another one in its place."""


class CacheChange(Struct, frozen=True):
    """Change in an engine's cache. Hashes of blocks are the engine's own, packed, 8 bytes each."""

    kind: ChangeKind
    blocks: bytes = b""
    """Blocks that were stored, each after the one before it, or removed, in any order."""
    parent: bytes = b""
    """Block before the first one that was stored; empty: it begins a prompt."""
    block_tokens: int = 0
    """Tokens in each block that was stored; 0: copies of blocks whose place was told before."""
    tier: CacheTier = CacheTier.DEVICE


class EngineTold(FeatureEvent, frozen=True):
    """An engine has told of changes in its cache."""

    replica_id: ReplicaId
    changes: tuple[CacheChange, ...]
    is_first: bool = False
    """Earlier changes are not known: what the engine told before is void."""

    def with_hashes(self, permuted: Callable[[bytes], bytes], /) -> Self:
        """Return the event with all its hashes permuted, in one call."""
        told = b"".join([each.parent + each.blocks for each in self.changes])
        if not told:
            return self
        permuted_all, start = permuted(told), 0
        hidden = []
        for each in self.changes:
            parent_end = start + len(each.parent)
            end = parent_end + len(each.blocks)
            hidden.append(replace(each, parent=permuted_all[start:parent_end], blocks=permuted_all[parent_end:end]))
            start = end
        return replace(self, changes=tuple(hidden))


class EngineUnheard(FeatureEvent, frozen=True):
    """An engine's word counts no longer, until it begins anew."""

    replica_id: ReplicaId
    reason: UnheardReason
