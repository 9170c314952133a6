"""Worlds drawn from seeds: the same ones each time, unlike each other, and readable as scenario files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from gateway.core.features.disaggregated.config import DecodePolicyName, decode_of
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.vocabulary import Connector
from loadgen.simulator.answers import Told
from loadgen.simulator.chaos import ChaosKind, ChaosRun, Finding, chaos_document, chaos_scenario, run_chaos
from loadgen.simulator.faults import FaultKind
from loadgen.simulator.scenario import load_scenario

SEEDS = range(60)


def test_a_seed_draws_the_same_world() -> None:
    assert chaos_document(7) == chaos_document(7)
    assert chaos_document(7) != chaos_document(8)


def test_a_world_written_to_a_file_is_the_same_world(tmp_path: Path) -> None:
    for seed in SEEDS[::3]:
        path = tmp_path / f"chaos-{seed}.yaml"
        path.write_text(yaml.safe_dump(chaos_document(seed)))
        assert load_scenario(path) == chaos_scenario(seed)


def test_worlds_whose_pools_move_have_all_decode_policies() -> None:
    worlds = [chaos_scenario(seed, ChaosKind.MOVING_POOLS) for seed in SEEDS]
    specs = [spec for world in worlds for spec in world.pools(world.runs[0]).values()]
    assert {decode_of(spec).policy for spec in specs} == set(DecodePolicyName)
    assert all(world.controller is not None for world in worlds)


def test_worlds_of_disaggregated_pools_are_of_many_kinds_and_one_engine_does_both_somewhere(tmp_path: Path) -> None:
    worlds = [chaos_scenario(seed, ChaosKind.DISAGGREGATED) for seed in SEEDS]
    pools = [region.disaggregated for world in worlds for region in world.regions.values() if region.disaggregated]
    assert {pool.connector for pool in pools} == set(Connector)
    assert all(any(not region.disaggregated for region in world.regions.values()) for world in worlds)
    assert all(world.pools(world.runs[0]) for world in worlds)
    hit = {fault.target for world in worlds for fault in world.faults}
    assert any("/decode" in target for target in hit)
    assert any("/prefill" in target for target in hit)
    path = tmp_path / "chaos.yaml"
    path.write_text(yaml.safe_dump(chaos_document(3, ChaosKind.DISAGGREGATED)))
    assert load_scenario(path) == worlds[3]


def test_worlds_are_of_many_kinds() -> None:
    worlds = [chaos_scenario(seed) for seed in SEEDS]
    assert len({fault.kind for world in worlds for fault in world.faults}) == sum(
        kind.is_drawn and not kind.needs_controller and kind is not FaultKind.GATEWAY_SILENT for kind in FaultKind
    )
    assert {len(world.regions) for world in worlds} == {2, 3, 4}
    assert any(region.adopted for world in worlds for region in world.regions.values())
    assert any(region.tenants for world in worlds for region in world.regions.values())
    drawn = Counter(world.runs[0].as_config().placement.policy for world in worlds)
    assert len(drawn) == 7
    assert min(drawn[PlacementPolicy.COST], drawn[PlacementPolicy.PREFIX]) > len(worlds) / 10


@pytest.mark.nightly
def test_where_agents_fill_the_caches_requests_are_held_for_their_sake() -> None:
    """Requests are held for the time of replicas, too: without any, the checks of held requests would check nothing."""
    full = [seed for seed in SEEDS if chaos_document(seed).get("kv_tokens")]
    assert len(full) > len(SEEDS) / 8
    held: Counter[str] = Counter()
    for seed in full:
        ordeal = run_chaos(seed)
        assert isinstance(ordeal, ChaosRun), ordeal
        held.update(ordeal.held)
    assert min(held["cache"], held["time"]) > 10, held


BREAKING = (5, 41)
"""Seeds of meshes whose answers break most."""


def test_where_answers_break_all_the_time_they_go_on_and_no_token_is_lost() -> None:
    ordeals = [run_chaos(seed, ChaosKind.BREAKING) for seed in BREAKING]
    assert [each for each in ordeals if isinstance(each, Finding)] == []
    assert sum(each.resumes for each in ordeals if isinstance(each, ChaosRun)) > 15


def test_whoever_goes_on_at_the_wrong_place_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded defect: each continuation begins one token too early."""
    honest = Told.breaks_off
    monkeypatch.setattr(Told, "breaks_off", lambda told, now_ns: max(honest(told, now_ns) - 1, 0))
    found = [run_chaos(seed, ChaosKind.BREAKING) for seed in BREAKING[:1]]
    assert any(isinstance(each, Finding) and "OutOfPlace" in each.what for each in found), found
