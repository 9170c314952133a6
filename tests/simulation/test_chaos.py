"""Worlds with many failures, of each kind: no request is lost, answered twice or leaves its regions, no invariant of
the kind breaks, and every request after everything has healed is served.

`make test` plays a few worlds, each of which shows what its kind is made for; `make nightly` plays hundreds.
`test_decision_digest.py` plays one more of most kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet

from gateway.core.events import Event
from gateway.core.features.cache_digests.events import DigestHeard, DigestPart
from gateway.core.features.kv_events.engine_cache import TieResult
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg
from gateway.core.vocabulary import GatewayId, LegRole, Outcome, RequestId
from loadgen.simulator.chaos import ChaosKind, ChaosRun, Finding, chaos_scenario, run_chaos
from loadgen.simulator.checkers import Broken
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.faults import FaultKind
from loadgen.simulator.world import World


class Worlds(NamedTuple):
    """Worlds of a kind."""

    kind: ChaosKind
    few: range
    """Seeds of `make test`; those that another test of this file plays to their ends are left out."""
    night: int
    """Seeds of `make nightly`, from 1 on."""
    at_once: int
    completed_min: int
    """Requests that are completed in each world, on average."""


WORLDS = (
    Worlds(ChaosKind.MESH, range(2, 4), 200, 20, 5),
    Worlds(ChaosKind.CONTROLLER, range(0), 200, 20, 50),
    Worlds(ChaosKind.PAIR, range(0), 100, 20, 50),
    Worlds(ChaosKind.MOVING_POOLS, range(11, 12), 100, 10, 30),
    Worlds(ChaosKind.DISAGGREGATED, range(0), 100, 10, 10),
    Worlds(ChaosKind.POOLS, range(0), 100, 10, 10),
    Worlds(ChaosKind.BREAKING, range(0), 100, 10, 5),
    Worlds(ChaosKind.MIXED_MODELS, range(1, 2), 100, 10, 5),
    Worlds(ChaosKind.CACHE_DIGESTS, range(0), 200, 10, 5),
    Worlds(ChaosKind.KV_EVENTS, range(0), 200, 10, 5),
    Worlds(ChaosKind.LEAVING, range(1, 2), 300, 10, 5),
    Worlds(ChaosKind.SILENT, range(0), 100, 10, 5),
    Worlds(ChaosKind.UNSTEADY, range(1, 3), 200, 10, 5),
    Worlds(ChaosKind.BATCHES, range(2, 4), 300, 10, 5),
)


def cases() -> Iterator[ParameterSet]:
    for each in WORLDS:
        blocks = [range(first, first + each.at_once) for first in range(1, each.night + 1, each.at_once)]
        for seeds in filter(None, [each.few, *blocks]):
            marks = [] if seeds is each.few else [pytest.mark.nightly]
            yield pytest.param(
                each.kind, seeds, each.completed_min, marks=marks, id=f"{each.kind}-{seeds[0]}-{seeds[-1]}"
            )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seeds", "completed_min"), [*cases()])
def test_nothing_is_found(kind: ChaosKind, seeds: Sequence[int], completed_min: int) -> None:
    outcomes = [run_chaos(seed, kind) for seed in seeds]
    assert [outcome for outcome in outcomes if isinstance(outcome, Finding)] == []
    completed = sum(outcome.outcomes.get("completed", 0) for outcome in outcomes if isinstance(outcome, ChaosRun))
    assert completed > completed_min * len(seeds)


def test_every_kind_has_worlds() -> None:
    assert sorted(each.kind for each in WORLDS) == sorted(ChaosKind)


def endured(kind: ChaosKind, seed: int, decisions: DecisionDigest | None = None) -> World:
    """World that was played to its end without a finding."""
    scenario = chaos_scenario(seed, kind)
    world = World(scenario, scenario.runs[0], every_invariant=True, decisions=decisions)
    assert world.play().outcomes.get("completed", 0) > 5
    world.check_the_end()
    return world


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


def test_of_two_controllers_with_many_failures_one_leads() -> None:
    """Checked as an invariant of every world with two."""
    endured(ChaosKind.PAIR, 2)


@pytest.mark.nightly
def test_pools_that_moved_to_another_region_serve_there() -> None:
    """Some worlds complete no request in a pool that moved; this one completes about a hundred."""
    away = _AwayFromHome()
    endured(ChaosKind.MOVING_POOLS, 1, away)
    assert away.completed > 10


@pytest.mark.slow
def test_batches_are_taken_over_and_some_expire() -> None:
    scenario = chaos_scenario(1, ChaosKind.BATCHES)
    world = World(scenario, scenario.runs[0], every_invariant=True)
    batches = world.play().batches
    world.check_the_end()
    assert any(each.takeovers for each in batches)
    assert any(each.expired for each in batches)
    assert any(each.is_kept for each in batches)


def test_gateways_are_told_of_prompts_and_a_fingerprint_that_must_not_be_told_is_found() -> None:
    world = endured(ChaosKind.CACHE_DIGESTS, 3)
    assert world.digests.told > 0
    teller, hearer = list(chaos_scenario(3, ChaosKind.CACHE_DIGESTS).fleet())[:2]
    part = DigestPart(is_first=True, from_version=0, to_version=1, added=bytes(8))
    with pytest.raises(Broken, match="no prompt that it had"):
        world.digests.on_step(world.now_ns, hearer, DigestHeard(teller, part), [])


def test_engines_are_heard_and_blocks_are_tied() -> None:
    world = endured(ChaosKind.KV_EVENTS, 4)
    cores = [gateway.core for gateway in world._around.gateways.values() if gateway.core is not None]
    assert sum(kv_events_of(core).results[TieResult.TIED] for core in cores) > 0


def test_legs_at_silent_peers_are_taken_back() -> None:
    lines: list[str] = []
    assert not isinstance(run_chaos(5, ChaosKind.SILENT, lines.append), Finding)
    assert any("take back" in line for line in lines)


def test_gateways_stall_in_every_world_and_links_are_unsteady_in_most() -> None:
    worlds = [{each.kind for each in chaos_scenario(seed, ChaosKind.UNSTEADY).faults} for seed in range(1, 21)]
    assert all(FaultKind.GATEWAY_STALLED in kinds for kinds in worlds)
    assert sum(bool(kinds & {FaultKind.LOSSY_LINK, FaultKind.UNSTEADY_LINK}) for kinds in worlds) > 10
