"""The tests that come first: the same seed gives the same story; no request is lost or answered twice; requests are
served.

The fourth, a live journal that replays equal, needs sockets and stands in `tests/integration/test_journal.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.core.kernel.config import PlacementPolicy
from gateway.core.vocabulary import Outcome
from tests.support.core import BOTH
from tests.support.nightly import first_of
from tests.support.random_walk import RandomWalk

ROOT = Path(__file__).parents[2]
OTHERS = [each for each in PlacementPolicy if each not in BOTH]


def digest_in_a_fresh_process(seed: int, hash_seed: str, placement: PlacementPolicy) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.random_walk", str(seed), "400", placement],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("placement", first_of(BOTH))
def test_same_seed_same_story_whatever_the_hash_seed(placement: PlacementPolicy) -> None:
    first, second = (digest_in_a_fresh_process(7, hash_seed, placement) for hash_seed in ("1", "4242"))
    assert len(first) == 64
    assert first == second
    other = RandomWalk(8, placement)
    other.run(400)
    assert other.digest() != first


@pytest.mark.parametrize("seeds", first_of([range(1), range(1, 5)]), ids=["first", "others"])
@pytest.mark.parametrize(
    "placement", first_of([*BOTH, *(each for each in PlacementPolicy if each not in BOTH)], kept=2)
)
def test_nothing_lost_nothing_twice(placement: PlacementPolicy, seeds: range) -> None:
    """Invariants are checked after every event; at the end every request has one answer and none is open."""
    for seed in seeds:
        walk = RandomWalk(seed, placement)
        walk.run(600)
        assert len(walk.mesh.asks) > 100
        assert {len(ask.ends) for ask in walk.mesh.asks.values()} == {1}
        for core in walk.mesh.cores.values():
            assert not core.requests
            assert not len(core.waiting)
            assert all(state.in_flight == 0 for state in [*core.replicas, *core.peers])


@pytest.mark.parametrize("placement", BOTH)
def test_somebody_is_served(placement: PlacementPolicy) -> None:
    """A gateway that refuses or drops everything would pass the test above."""
    walk = RandomWalk(3, placement)
    walk.run(1_000)
    ends = [end for ask in walk.mesh.asks.values() for end in ask.ends]
    assert ends.count(Outcome.COMPLETED) > 0.6 * len(ends)
    forwarded = [line for line in walk.mesh.told if b"AcceptForward" in line]
    assert len(forwarded) > 20
    assert (walk.held > 20) == (placement is PlacementPolicy.COST), "what holds requests is walked through as well"
