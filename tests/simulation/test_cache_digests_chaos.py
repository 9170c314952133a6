"""Worlds whose gateways tell each other what their replicas hold, while heartbeats are lost or late: no invariant
breaks, and no gateway is told of a prompt that it must not process.
"""

from __future__ import annotations

import pytest

from gateway.core.features.cache_digests.events import DigestHeard, DigestPart
from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.checkers import Broken
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=4, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.CACHE_DIGESTS, seeds) > 5 * len(seeds)


def test_gateways_are_told_and_a_fingerprint_that_must_not_be_told_is_found() -> None:
    scenario = chaos_scenario(3, ChaosKind.CACHE_DIGESTS)
    world = World(scenario, scenario.runs[0])
    world.play()
    assert world.digests.told > 0
    teller, hearer = list(scenario.fleet())[:2]
    part = DigestPart(is_first=True, from_version=0, to_version=1, added=bytes(8))
    with pytest.raises(Broken, match="no prompt that it had"):
        world.digests.on_step(world.now_ns, hearer, DigestHeard(teller, part), [])
