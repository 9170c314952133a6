"""Measures cache digests: how the fingerprints of a million prefix blocks compare with Bloom and cuckoo filters in
memory, bytes sent and false matches, and how much one peer is told of caches in use.

The filters are written here as published and are used by nothing else.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from math import ceil, log

from gateway.core import vocabulary
from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.holdings import Holdings
from gateway.core.features.cache_digests.telling import Telling, part_bytes
from gateway.core.features.cache_digests.told import ToldDigest
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import PREFIX_HASH_BYTES

_HERE, _THERE = (
    vocabulary.Place(vocabulary.RegionName(region), vocabulary.Jurisdiction(law))
    for region, law in (("us-east-1", "US"), ("eu-west-1", "EU"))
)
_EVERYWHERE = vocabulary.PlaceRule(regions=frozenset({_HERE.region, _THERE.region}))
_GROUP = vocabulary.TenantName("default"), (_THERE,)
_POLICY = ResidencyPolicy(_HERE, _EVERYWHERE, _EVERYWHERE)
_BLOCKS = 1_000_000
_REPLICAS = 8
_SHARED_BLOCKS = 32
"""Blocks of the system prompt that conversations of one application share."""
_APPLICATIONS = 20
_TURN_BLOCKS = (2, 24)
_BLOCKS_MAX = 4_096
_BYTES_PER_SECOND = 65_536
_REQUESTS_PER_S = 50
_HEARTBEATS_PER_S = 10
_SECONDS = 60
_PROBES = 200_000
_BLOOM_SHARE = 0.005
_CUCKOO_BITS, _CUCKOO_SLOTS, _CUCKOO_LOAD = 12, 4, 0.95
_SECOND_NS = 1_000_000_000


def run() -> Mapping[str, object]:
    """Figures of one gateway whose replicas hold a million blocks, and of one peer."""
    rng = random.Random(7)
    conversations = _conversations(rng)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    holdings = Holdings(_BLOCKS)
    for at, chain in enumerate(conversations):
        _record(holdings, chain, at % _REPLICAS, at)
    own_bytes = tracemalloc.get_traced_memory()[0] - before
    telling, digest = Telling(), ToldDigest()
    before = tracemalloc.get_traced_memory()[0]
    parts = _tell_all(holdings, telling, digest)
    told_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    entries = len(holdings)
    strangers = [_chain(rng, b"", rng.randrange(64, 1024)) for _ in range(_PROBES // 50)]
    return {
        "blocks_held": len({chain[at : at + 8] for chain in conversations for at in range(0, len(chain), 8)}),
        "fingerprints": entries,
        "own_bytes_per_fingerprint": round(own_bytes / entries),
        "peer_bytes_per_fingerprint": round(told_bytes / entries),
        "whole_digest_bytes": sum(map(part_bytes, parts)),
        "whole_digest_s_at_limit": round(sum(map(part_bytes, parts)) / _BYTES_PER_SECOND, 1),
        **_in_use(rng, holdings, telling, digest, conversations),
        "false_match_share": sum(digest.blocks_of(chain, len(chain) // 8) > 0 for chain in strangers) / len(strangers),
        **_filters(rng, entries),
        **_times(conversations, digest),
    }


def _conversations(rng: random.Random) -> list[bytes]:
    prompts = [_chain(rng, b"", _SHARED_BLOCKS) for _ in range(_APPLICATIONS)]
    found, blocks = [], 0
    while blocks < _BLOCKS:
        length = min(_BLOCKS_MAX - _SHARED_BLOCKS, int(rng.lognormvariate(4.8, 0.9)) + 1)
        found.append(_chain(rng, rng.choice(prompts), length))
        blocks += length
    return found


def _chain(rng: random.Random, start: bytes, blocks: int) -> bytes:
    return start + rng.randbytes(PREFIX_HASH_BYTES * blocks)


def _record(holdings: Holdings, chain: bytes, slot: int, now_ns: int) -> None:
    room = ceil(_BLOCKS / _REPLICAS)
    holdings.record(_GROUP, chain, len(chain) // PREFIX_HASH_BYTES, slot, now_ns, blocks_max=room)


def _tell_all(holdings: Holdings, telling: Telling, digest: ToldDigest) -> list[DigestPart]:
    parts: list[DigestPart] = []
    while not parts or parts[-1].added or parts[-1].removed:
        parts.append(telling.next_part(holdings, _POLICY, _THERE, _BYTES_PER_SECOND // _HEARTBEATS_PER_S))
        digest.hear(parts[-1], 0, _BLOCKS)
    return parts


def _in_use(
    rng: random.Random, holdings: Holdings, telling: Telling, digest: ToldDigest, conversations: list[bytes]
) -> Mapping[str, object]:
    """Bytes per second for turns of conversations on full caches, and the staleness of each change at the peer."""
    sent, waits_ns, at_ns = 0, [], len(conversations)
    recorded: dict[int, int] = {}
    budget = 0.0
    for tick in range(_SECONDS * _HEARTBEATS_PER_S):
        heartbeat_ns = (tick + 1) * _SECOND_NS // _HEARTBEATS_PER_S
        for turn in range(_REQUESTS_PER_S // _HEARTBEATS_PER_S):
            at = rng.randrange(len(conversations))
            added = rng.randrange(*_TURN_BLOCKS)
            chain = conversations[at] = _chain(rng, conversations[at], added)[: _BLOCKS_MAX * PREFIX_HASH_BYTES]
            now_ns = heartbeat_ns - (turn + 1) * _SECOND_NS // _REQUESTS_PER_S
            known = holdings.changes.version
            _record(holdings, chain, at % _REPLICAS, at_ns + now_ns)
            recorded.update(dict.fromkeys(range(known + 1, holdings.changes.version + 1), now_ns))
        budget = min(_BYTES_PER_SECOND, budget + _BYTES_PER_SECOND / _HEARTBEATS_PER_S)
        part = telling.next_part(holdings, _POLICY, _THERE, int(budget))
        digest.hear(part, heartbeat_ns, _BLOCKS)
        budget -= part_bytes(part)
        sent += part_bytes(part)
        waits_ns += [heartbeat_ns - recorded.pop(each) for each in [at for at in recorded if at <= part.to_version]]
    waits_ns.sort()
    return {
        "bytes_per_s_in_use": round(sent / _SECONDS),
        "waiting_p99_ms": waits_ns[len(waits_ns) * 99 // 100] // 1_000_000,
        "changes_not_told": len(recorded),
    }


def _times(conversations: Sequence[bytes], digest: ToldDigest) -> Mapping[str, object]:
    chains = [chain for chain in conversations if len(chain) > 128 * PREFIX_HASH_BYTES][:500]
    holdings = Holdings(_BLOCKS)
    first_us = _us_each(lambda chain: _record(holdings, chain, 0, 1), chains)
    again_us = _us_each(lambda chain: _record(holdings, chain, 0, 1), chains)
    match_us = _us_each(lambda chain: digest.blocks_of(chain, len(chain) // PREFIX_HASH_BYTES), chains)
    return {
        "record_first_us": round(first_us, 1),
        "record_again_us": round(again_us, 1),
        "match_us": round(match_us, 2),
    }


def _us_each(do: Callable[[bytes], object], chains: Sequence[bytes]) -> float:
    started = time.process_time()
    for chain in chains:
        do(chain)
    return 1e6 * (time.process_time() - started) / len(chains)


def _filters(rng: random.Random, entries: int) -> Mapping[str, object]:
    """The same number of random keys in a Bloom and in a cuckoo filter."""
    keys = [rng.getrandbits(64) for _ in range(entries)]
    strangers = [rng.getrandbits(64) for _ in range(_PROBES)]
    found: dict[str, object] = {}
    for name, made in (("bloom", _Bloom(entries)), ("cuckoo", _Cuckoo(entries, rng))):
        started = time.process_time()
        for key in keys:
            made.add(key)
        took_s = time.process_time() - started
        assert all(key in made for key in keys[:1000]), "no filter forgets"
        found |= {
            f"{name}_bytes_per_key": round(made.size_bytes / entries, 2),
            f"{name}_add_us": round(1e6 * took_s / entries, 2),
            f"{name}_false_share": sum(key in made for key in strangers) / len(strangers),
        }
    known = set(keys)
    plain = sum(key in known for key in strangers) / len(strangers)
    return found | {
        "plain_false_share": plain,
        "plain_set_bytes_per_key": round(sys.getsizeof(known) / len(known) + 32),
    }


class _Bloom:
    """Bloom filter for the false share that is aimed at (Bloom 1970). It forgets nothing that was added."""

    def __init__(self, entries: int) -> None:
        bits_per_key = -log(_BLOOM_SHARE) / log(2) ** 2
        self._hashes = round(bits_per_key * log(2))
        self._bits = bytearray(ceil(entries * bits_per_key / 8))

    @property
    def size_bytes(self) -> int:
        return len(self._bits)

    def _places(self, key: int) -> list[int]:
        low, high = key & 0xFFFF_FFFF, key >> 32 | 1
        return [(low + step * high) % (8 * len(self._bits)) for step in range(self._hashes)]

    def add(self, key: int) -> None:
        for place in self._places(key):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: int) -> bool:
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in self._places(key))


class _Cuckoo:
    """Cuckoo filter with fingerprints of twelve bits in buckets of four (Fan et al. 2014). A key can be removed; 16-bit
    cells here, of which twelve count."""

    def __init__(self, entries: int, rng: random.Random) -> None:
        buckets = 1 << (ceil(entries / _CUCKOO_LOAD / _CUCKOO_SLOTS) - 1).bit_length()
        self._mask = buckets - 1
        self._rng = rng
        self._cells: list[list[int]] = [[] for _ in range(buckets)]

    @property
    def size_bytes(self) -> int:
        return len(self._cells) * _CUCKOO_SLOTS * _CUCKOO_BITS // 8

    def _at(self, key: int) -> tuple[int, int, int]:
        short = (key >> 40) % ((1 << _CUCKOO_BITS) - 1) + 1
        one = key & self._mask
        return short, one, self._other(one, short)

    def _other(self, place: int, short: int) -> int:
        return (place ^ (short * 0x5BD1E995)) & self._mask

    def add(self, key: int) -> None:
        short, one, other = self._at(key)
        for place in (one, other):
            if len(self._cells[place]) < _CUCKOO_SLOTS:
                self._cells[place].append(short)
                return
        place = one
        for _ in range(500):
            at = self._rng.randrange(_CUCKOO_SLOTS)
            short, self._cells[place][at] = self._cells[place][at], short
            place = self._other(place, short)
            if len(self._cells[place]) < _CUCKOO_SLOTS:
                self._cells[place].append(short)
                return
        raise AssertionError("the filter is too full")

    def __contains__(self, key: int) -> bool:
        short, one, other = self._at(key)
        return short in self._cells[one] or short in self._cells[other]
