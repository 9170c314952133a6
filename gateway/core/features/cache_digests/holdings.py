"""Mirror of the own replicas' caches, as far as a digest names their blocks: the prompts that each replica has
prefilled, within the room that its engine reports, the least recently used blocks dropped first.

An entry is a block's fingerprint and its rung within a group. A group is a tenant with the peers' places that may
process such requests of it: entries of one group may be told to the same gateways.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from gateway.core.features.cache_digests.changes import DigestChanges
from gateway.core.features.cache_digests.fingerprints import RUNGS, fingerprint, rungs_within
from gateway.core.vocabulary import Place, PlaceRule, TenantName

Group = tuple[TenantName, tuple[Place, ...]]
_FINGERPRINT_BITS: Final = 64
_FINGERPRINT_MASK: Final = (1 << _FINGERPRINT_BITS) - 1
_RUNG_BITS: Final = 8
_RUNG_MASK: Final = (1 << _RUNG_BITS) - 1
_GROUP_SHIFT: Final = _FINGERPRINT_BITS + _RUNG_BITS
_BLOCK_MASK: Final = (1 << _GROUP_SHIFT) - 1
_STANDS_FOR: Final = tuple([rung - (RUNGS[at - 1] if at else 0) for at, rung in enumerate(RUNGS)])
"""Blocks that an entry stands for, by rung: those since the rung before."""
GROUPS_MAX: Final = 4096


def group_under(tenant: TenantName, rule: PlaceRule, places: Iterable[Place]) -> Group:
    """Group of a tenant's prompts that came under a rule, where peers are in these places. A rule names as many places
    as its sender likes, and a group only those of peers."""
    return tenant, tuple([place for place in dict.fromkeys(places) if rule.allows(place)])


def group_of(entry: int) -> int:
    return entry >> _GROUP_SHIFT


def fingerprint_of(entry: int) -> int:
    return entry & _FINGERPRINT_MASK


def _blocks_of(entry: int) -> int:
    return _STANDS_FOR[entry >> _FINGERPRINT_BITS & _RUNG_MASK]


class _Cache:
    """Entries that one replica holds, the least recently used first."""

    __slots__ = ("blocks", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[int, int] = OrderedDict()
        """Time of each entry's last use."""
        self.blocks = 0


class Holdings:
    """Entries of all replicas, by slot."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._caches: dict[int, _Cache] = {}
        self._holders: dict[int, int] = {}
        """Number of replicas that hold each entry."""
        self._copies = 0
        """Entries of all replicas, each counted at every replica that holds it."""
        self._numbers: dict[Group, int] = {}
        self._last_number = 0
        self._sizes: dict[int, int] = {}
        """Number of each group's entries."""
        self._groups_of: dict[int, tuple[int, ...]] = {}
        """Numbers of the groups in which each block is held."""
        self.groups: dict[int, Group] = {}
        """Groups with entries, by number. A number is never given twice: a peer's verdict on it stands."""
        self.changes = DigestChanges(entries_max)

    def __len__(self) -> int:
        return len(self._holders)

    def has_room_for(self, group: Group) -> bool:
        return group in self._numbers or len(self.groups) < GROUPS_MAX

    def alike(self, entry: int) -> list[int]:
        """Entries that are held of the same block in other groups."""
        block = entry & _BLOCK_MASK
        return [each for number in self._groups_of.get(block, ()) if (each := number << _GROUP_SHIFT | block) != entry]

    def record(self, group: Group, chain: bytes, blocks: int, slot: int, now_ns: int, *, blocks_max: int) -> None:
        """Note that a replica has prefilled a chain of so many blocks. `blocks_max`: room of its cache; 0: not
        known."""
        number = self._number_of(group) << _RUNG_BITS
        cache = self._caches.get(slot)
        if cache is None:
            cache = self._caches[slot] = _Cache()
        entries = cache.entries
        for rung in range(rungs_within(blocks) - 1, -1, -1):  # the last block is the first to be dropped
            entry = (number | rung) << _FINGERPRINT_BITS | fingerprint(chain, RUNGS[rung])
            if entry in entries:
                entries.move_to_end(entry)
            else:
                cache.blocks += _STANDS_FOR[rung]
                self._copies += 1
                self._hold(entry)
            entries[entry] = now_ns
        while blocks_max and cache.blocks > blocks_max and len(entries) > 1:
            self._drop_oldest(cache)
        while self._copies > self._entries_max:
            self._drop_oldest(min(self._caches.values(), key=_last_used))

    def forget(self, slot: int) -> None:
        """Forget all that a replica holds."""
        cache = self._caches.pop(slot, None)
        while cache is not None and cache.entries:
            self._drop_oldest(cache)

    def expire(self, before_ns: int) -> None:
        """Forget entries last used before this time."""
        for cache in self._caches.values():
            while cache.entries and _last_used(cache) < before_ns:
                self._drop_oldest(cache)

    def violations(self) -> list[str]:
        """Return the broken invariants, for tests."""
        holders: dict[int, int] = {}
        for slot, cache in self._caches.items():
            for entry in cache.entries:
                holders[entry] = holders.get(entry, 0) + 1
            if cache.blocks != sum(map(_blocks_of, cache.entries)):
                return [f"the blocks of slot {slot} are miscounted"]
        broken = self.changes.violations()
        if holders != self._holders or any(entry not in self.changes for entry in holders):
            broken.append("entries and replicas that hold them differ")
        if sum(holders.values()) != self._copies or self._copies > self._entries_max:
            broken.append(f"{self._copies} entries are counted at all replicas")
        if self._sizes.keys() != self.groups.keys() or sum(self._sizes.values()) != len(holders):
            broken.append("groups and their entries differ")
        if len(self.changes) != len(holders):
            broken.append(f"{len(holders)} entries are held, {len(self.changes)} are told")
        return broken

    def _number_of(self, group: Group) -> int:
        number = self._numbers.get(group)
        if number is None:
            self._last_number += 1
            number = self._numbers[group] = self._last_number
            self.groups[number] = group
        return number

    def _hold(self, entry: int) -> None:
        holders = self._holders.get(entry, 0)
        self._holders[entry] = holders + 1
        if not holders:
            number, block = group_of(entry), entry & _BLOCK_MASK
            self._sizes[number] = self._sizes.get(number, 0) + 1
            self._groups_of[block] = (*self._groups_of.get(block, ()), number)
            self.changes.add(entry)

    def _drop_oldest(self, cache: _Cache) -> None:
        entry, _ = cache.entries.popitem(last=False)
        cache.blocks -= _blocks_of(entry)
        self._copies -= 1
        holders = self._holders[entry] - 1
        if holders:
            self._holders[entry] = holders
        else:
            del self._holders[entry]
            self.changes.remove(entry)
            self._leave_group(entry)

    def _leave_group(self, entry: int) -> None:
        number, block = group_of(entry), entry & _BLOCK_MASK
        others = tuple([each for each in self._groups_of[block] if each != number])
        if others:
            self._groups_of[block] = others
        else:
            del self._groups_of[block]
        self._sizes[number] -= 1
        if not self._sizes[number]:
            del self._sizes[number]
            del self._numbers[self.groups.pop(number)]


def _last_used(cache: _Cache) -> int:
    """Time of the last use of the entry used least recently; later than any time for a cache without one."""
    for used_ns in cache.entries.values():
        return used_ns
    return 1 << 62
