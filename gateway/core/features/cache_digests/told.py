"""One peer's digest as this gateway was told it. Whatever the peer says changes only its own entries, of which there is
a limited number.
"""

from __future__ import annotations

from typing import Final

from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.fingerprints import RUNGS, fingerprint, rungs_within, unpacked

ASK_AGAIN_NS: Final = 5_000_000_000
"""Least time between two requests for a whole digest, so that a peer whose parts never fit costs little."""


class ToldDigest:
    """Fingerprints that a peer says its replicas hold."""

    def __init__(self) -> None:
        self._fingerprints: set[int] = set()
        self.version = 0
        self.heard_ns = 0
        self.is_torn = True
        """A part is missing: nothing is known until the peer starts anew."""
        self._asked_ns: int | None = None
        self.refused = 0
        """Fingerprints that were not kept: there was no room, or a part before them was missing."""

    def __len__(self) -> int:
        return len(self._fingerprints)

    def hear(self, part: DigestPart, now_ns: int, fingerprints_max: int) -> None:
        self.heard_ns = now_ns
        added = unpacked(part.added)
        if part.is_first:
            self._fingerprints.clear()
            self.is_torn = False
        elif self.is_torn or part.from_version != self.version:
            self._fingerprints.clear()
            self.is_torn = True
            self.refused += len(added)
            return
        self.version = part.to_version
        self._fingerprints.difference_update(unpacked(part.removed))
        room = fingerprints_max - len(self._fingerprints)
        self._fingerprints.update(added[:room])
        self.refused += max(0, len(added) - room)

    def is_to_be_asked(self, now_ns: int) -> bool:
        """True if the peer is to be asked for the whole digest at this moment; then it counts as asked."""
        if not self.is_torn or (self._asked_ns is not None and now_ns < self._asked_ns + ASK_AGAIN_NS):
            return False
        self._asked_ns = now_ns
        return True

    def blocks_of(self, chain: bytes, blocks: int) -> int:
        """Number of a chain's first blocks that the peer says it holds, found by bisection over the rungs."""
        known = self._fingerprints
        if not known:
            return 0
        low, high = 0, rungs_within(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if fingerprint(chain, RUNGS[middle - 1]) in known:
                low = middle
            else:
                high = middle - 1
        return RUNGS[low - 1] if low else 0
