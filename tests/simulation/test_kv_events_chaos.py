"""Worlds whose engines tell what their caches hold, while messages are lost, engines crash and gateways restart: no
invariant breaks, and what gateways believe is nearer to the truth than without.
"""

from __future__ import annotations

import pytest

from gateway.core.events import Event
from gateway.core.features.kv_events.engine_cache import TieResult
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.events import RequestArrived
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId
from loadgen.simulator.chaos import chaos_scenario, run_kv_events_chaos
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=4, at_once=10))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(run_kv_events_chaos, seeds) > 5 * len(seeds)
