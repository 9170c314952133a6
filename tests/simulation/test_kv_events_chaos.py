"""Worlds whose engines tell what their caches hold, while messages are lost, engines crash and gateways restart: no
invariant breaks, and blocks are tied to prompts.
"""

from __future__ import annotations

import pytest

from gateway.core.features.kv_events.engine_cache import TieResult
from gateway.core.features.kv_events.feature import kv_events_of
from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=4, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.KV_EVENTS, seeds) > 5 * len(seeds)


def test_engines_are_heard_and_blocks_are_tied() -> None:
    scenario = chaos_scenario(4, ChaosKind.KV_EVENTS)
    world = World(scenario, scenario.runs[0])
    world.play()
    cores = [gateway.core for gateway in world._around.gateways.values() if gateway.core is not None]
    tied = sum(kv_events_of(core).results[TieResult.TIED] for core in cores)
    assert tied > 0
