"""Worlds with many failures of a controller: no policy is broken, no replica moves while it is frozen, every name has
an answer, each replica has one owner, and all replicas return to their home gateways. `make test` plays eight of them,
`make nightly` four hundred.
"""

from __future__ import annotations

import pytest

from gateway.core.events import Event
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg
from gateway.core.vocabulary import GatewayId, LegRole, Outcome, RequestId
from loadgen.simulator.chaos import ChaosKind, chaos_scenario
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.world import World
from tests.support.nightly import seeds_of
from tests.support.ordeals import completed_without_finding


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(200, few=3, at_once=20))
def test_nothing_is_found(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.CONTROLLER, seeds) > 50 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=3, at_once=20))
def test_nothing_is_found_with_two_of_which_one_leads(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.PAIR, seeds) > 50 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds_of(100, few=2, at_once=10))
def test_nothing_is_found_where_disaggregated_pools_move(seeds: range) -> None:
    assert completed_without_finding(ChaosKind.MOVING_POOLS, seeds) > 30 * len(seeds)


class _AwayFromHome(DecisionDigest):
    """Requests that a gateway decoded in another home's pool, and those of them that were completed."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded: set[tuple[GatewayId, RequestId]] = set()
        self.completed = 0

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartLeg) and effect.role is LegRole.DECODE:
                if effect.target.id.partition("/")[0] != gateway_id.partition("/")[0]:
                    self.decoded.add((gateway_id, effect.request_id))
            elif isinstance(effect, EndRequest) and (gateway_id, effect.request_id) in self.decoded:
                self.completed += effect.outcome is Outcome.COMPLETED


def test_pools_that_moved_to_another_region_serve_there() -> None:
    """Some worlds complete no request in a pool that moved; this one completes about a hundred."""
    scenario, away = chaos_scenario(1, ChaosKind.MOVING_POOLS), _AwayFromHome()
    World(scenario, scenario.runs[0], decisions=away).play()
    assert away.completed > 10
