from __future__ import annotations

from itertools import pairwise

from gateway.core.features.cache_digests.fingerprints import RUNGS, fingerprint, packed, rungs_within, unpacked
from tests.support.core import profile, words


def test_the_first_blocks_are_named_and_then_eight_in_each_doubling() -> None:
    assert RUNGS[:20] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24)
    assert RUNGS[rungs_within(4096) - 1] == 4096
    assert rungs_within(4096) == 80


def test_a_match_is_at_most_an_eighth_shorter_than_the_whole() -> None:
    assert all(longer - 1 <= shorter * 9 / 8 for shorter, longer in pairwise(RUNGS))


def test_a_chain_too_short_for_a_block_has_no_rung() -> None:
    assert rungs_within(0) == 0


def test_fingerprints_are_of_the_hash_of_the_last_block() -> None:
    chain = profile("a", prompt=words("a", 20)).prefix
    assert fingerprint(chain, 3) == int.from_bytes(chain[16:24], "big")


def test_packed_fingerprints_come_out_as_they_went_in() -> None:
    assert unpacked(packed([0, 1, 2**64 - 1])) == (0, 1, 2**64 - 1)
    assert unpacked(packed([7]) + b"abc") == (7,), "a rest is no fingerprint"
