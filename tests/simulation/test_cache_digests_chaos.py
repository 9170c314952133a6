"""Worlds whose gateways tell each other what their replicas hold, while heartbeats are lost or late: no invariant
breaks, and no gateway is told of a prompt that it must not process.
"""

from __future__ import annotations

import pytest

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import Place
from loadgen.simulator.chaos import Finding, chaos_scenario, run_cache_digests_chaos
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=4, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(run_cache_digests_chaos, seeds) > 5 * len(seeds)


def test_gateways_are_told() -> None:
    scenario = chaos_scenario(3, tells_caches=True)
    world = World(scenario, scenario.runs[0])
    world.play()
    assert world.digests.told > 0


def test_a_digest_that_goes_everywhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_everywhere(_group: object, _policy: ResidencyPolicy, _place: Place) -> bool:
        return True

    monkeypatch.setattr("gateway.core.features.cache_digests.telling.may_be_told", told_everywhere)
    found = [run_cache_digests_chaos(seed) for seed in range(1, 9)]
    assert {each.what for each in found if isinstance(each, Finding)} == {"digests go where their prompts may"}
