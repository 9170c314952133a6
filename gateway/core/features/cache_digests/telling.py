"""Parts of the digest for one peer: which changes it is told next. Only entries that the tenant's rules let the peer's
place know are ever told.
"""

from __future__ import annotations

from typing import Final

from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.fingerprints import FINGERPRINT_BYTES, packed
from gateway.core.features.cache_digests.holdings import Group, Holdings, fingerprint_of, group_of
from gateway.core.kernel.residency import ResidencyPolicy, may_process
from gateway.core.vocabulary import Place

_SECOND_NS: Final = 1_000_000_000
_PART_BYTES: Final = 64
"""Bytes that a part takes beside its fingerprints, counted generously."""


class ByteBudget:
    """Bytes that one peer may be told, over all of its subscriptions: at most what one second allows at once."""

    def __init__(self) -> None:
        self._left = 0.0
        self._earned_ns: int | None = None

    def earn(self, now_ns: int, bytes_per_second: int) -> int:
        """Add what the time since the last call allows. Returns the bytes that may be told at this moment."""
        since_ns = _SECOND_NS if self._earned_ns is None else now_ns - self._earned_ns
        self._left = min(float(bytes_per_second), self._left + bytes_per_second * since_ns / _SECOND_NS)
        self._earned_ns = now_ns
        return int(self._left)

    def spend(self, count: int) -> None:
        self._left -= count


class Telling:
    """Progress of one subscription: the version of the digest up to which the peer knows it."""

    def __init__(self) -> None:
        self._holdings: Holdings | None = None
        self._policy: ResidencyPolicy | None = None
        self._place: Place | None = None
        self._verdicts: dict[int, bool] = {}
        """Groups that the peer may or may not be told of, by number."""
        self._number = 0
        """Number of the last part. A peer sees numbers of its own parts: versions count what it may not know."""
        self._version = 0
        self._first = 0
        """Version of the digest when the peer was told to start anew."""

    def next_part(self, holdings: Holdings, policy: ResidencyPolicy, place: Place, bytes_max: int) -> DigestPart:
        """Part that the peer in that place is told at this moment. After a change of policy, place or holdings it
        starts anew."""
        changes = holdings.changes
        is_known = self._holdings is holdings and self._policy is policy and self._place == place
        is_first = not is_known or changes.forgotten > max(self._version, self._first)
        if is_first:
            self._holdings, self._policy, self._place = holdings, policy, place
            self._verdicts.clear()
            self._number, self._version, self._first = 0, 0, changes.version

        def may_tell(entry: int) -> bool:
            number = group_of(entry)
            verdict = self._verdicts.get(number)
            if verdict is None:
                group = holdings.groups.get(number)
                verdict = self._verdicts[number] = group is not None and may_be_told(group, policy, place)
            return verdict

        count_max = max(0, (bytes_max - _PART_BYTES) // FINGERPRINT_BYTES)
        batch = changes.after(self._version, self._first, count_max, may_tell)
        part = DigestPart(
            is_first,
            self._number,
            self._number + 1,
            packed([fingerprint_of(each) for each in batch.added]),
            packed([fingerprint_of(each) for each in batch.removed if not any(map(may_tell, holdings.alike(each)))]),
        )
        self._number += 1
        self._version = batch.version
        return part


def part_bytes(part: DigestPart) -> int:
    """Size of a part on the wire, counted generously; 0 for one that names nothing and goes with any heartbeat."""
    named = len(part.added) + len(part.removed)
    return _PART_BYTES + named if named else 0


def may_be_told(group: Group, policy: ResidencyPolicy, place: Place) -> bool:
    """True if a gateway in that place may process such requests of the tenant: by the stamp under which the prompt
    came, and by the policy in force for the tenant."""
    tenant, places = group
    return place in places and may_process(policy, tenant, place).allowed
