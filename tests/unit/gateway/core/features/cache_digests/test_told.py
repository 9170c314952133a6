from __future__ import annotations

from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.fingerprints import RUNGS, fingerprint, packed, rungs_within
from gateway.core.features.cache_digests.told import ASK_AGAIN_NS, ToldDigest
from tests.support.core import profile, words

LONG = profile("a", prompt=words("a"))
NAMED = [fingerprint(LONG.prefix, blocks) for blocks in RUNGS[: rungs_within(LONG.prefix_blocks)]]
ROOM = 1_000


def told(*fingerprints: int) -> ToldDigest:
    digest = ToldDigest()
    digest.hear(DigestPart(True, 0, 1, packed(list(fingerprints))), 0, ROOM)
    return digest


def blocks_at(digest: ToldDigest) -> int:
    return digest.blocks_of(LONG.prefix, LONG.prefix_blocks)


def test_the_longest_beginning_is_found_at_every_rung() -> None:
    for count in range(len(NAMED) + 1):
        assert blocks_at(told(*NAMED[:count])) == (RUNGS[count - 1] if count else 0)


def test_a_beginning_is_not_longer_than_the_prompt() -> None:
    assert told(*NAMED).blocks_of(LONG.prefix, 3) == 3


def test_what_is_removed_is_known_no_longer() -> None:
    digest = told(*NAMED[:9])
    digest.hear(DigestPart(False, 1, 2, b"", packed(NAMED[4:9])), 0, ROOM)
    assert blocks_at(digest) == RUNGS[3]


def test_a_missing_part_empties_the_digest_until_it_starts_anew() -> None:
    digest = told(*NAMED[:9])
    digest.hear(DigestPart(False, 5, 6, packed(NAMED[9:12])), 0, ROOM)
    assert (blocks_at(digest), digest.refused, digest.is_torn) == (0, 3, True)
    digest.hear(DigestPart(False, 6, 7, packed(NAMED)), 0, ROOM)
    assert blocks_at(digest) == 0
    digest.hear(DigestPart(True, 0, 7, packed(NAMED)), 0, ROOM)
    assert (blocks_at(digest), digest.is_torn) == (RUNGS[len(NAMED) - 1], False)


def test_a_torn_digest_is_asked_for_anew_now_and_then() -> None:
    digest = told()
    assert not digest.is_to_be_asked(0)
    digest.hear(DigestPart(False, 5, 6), 0, ROOM)
    assert [digest.is_to_be_asked(at_ns) for at_ns in (0, ASK_AGAIN_NS - 1, ASK_AGAIN_NS)] == [True, False, True]


def test_a_flood_fills_the_peer_s_own_room_and_no_more() -> None:
    digest = ToldDigest()
    digest.hear(DigestPart(True, 0, 1, packed(list(range(10)))), 0, 4)
    digest.hear(DigestPart(False, 1, 2, packed([100])), 0, 4)
    assert (len(digest), digest.refused) == (4, 7)
