"""Scenario files: their meaning, and that each fault is named by its key."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gateway.core.features.disaggregated.config import DecodePolicyName, decode_of
from gateway.core.kernel.config import OverflowMode, PlacementPolicy, PushingMode
from gateway.core.vocabulary import Connector, GatewayId, RegionName, ReplicaRole, TenantName
from loadgen.engine.model import EngineConfig
from loadgen.simulator.scenario import SYSTEMS, RunSection, System, load_scenario, merged, parse_scenario, set_key
from mesh.faults import ConfigError
from tests.support.scenarios import small_document

SCENARIOS = sorted((Path(__file__).parents[4] / "loadgen/scenarios").glob("*.yaml"))


def document(**changes: Any) -> dict[str, Any]:
    regions = {"us": {"jurisdiction": "US", "replicas": 3}, "eu": {"jurisdiction": "EU", "replicas": 1}}
    return small_document(regions=regions) | changes


def complaint(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_scenario(document(**changes), Path("small.yaml"))
    return str(caught.value)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_that_ship_can_be_read(path: Path) -> None:
    assert load_scenario(path).name.replace("-", "_") == path.stem


def test_a_systems_settings_can_be_overridden_one_by_one() -> None:
    runs = [
        {"system": "global_least_load"},
        {"name": "mine", "system": "global_least_load", "placement": {"ring_virtual_nodes": 7}},
    ]
    plain, mine = parse_scenario(document(runs=runs), Path("small.yaml")).runs
    assert (plain.name, mine.name) == ("global_least_load", "mine")
    for run in (plain, mine):
        assert run.as_config().placement.policy == PlacementPolicy.LEAST_LOAD
        assert run.as_config().placement.overflow is OverflowMode.OFF
        assert run.as_config().pushing.mode is PushingMode.BLIND
    assert mine.as_config().placement.ring_virtual_nodes == 7


def test_every_system_is_described() -> None:
    assert set(SYSTEMS) == set(System)


def test_gateways_of_a_region_share_its_replicas() -> None:
    scenario = parse_scenario(document(), Path("small.yaml"))
    set_key(changed := document(), "regions.us.gateways", 2)
    two = parse_scenario(changed, Path("small.yaml"))
    assert {gateway: len(owned) for gateway, owned in scenario.fleet().items()} == {"us/gw": 3, "eu/gw": 1}
    assert {gateway: len(owned) for gateway, owned in two.fleet().items()} == {"us/gw0": 2, "us/gw1": 1, "eu/gw": 1}


def test_an_adopted_replica_stands_where_it_stands() -> None:
    set_key(changed := document(), "regions.us.adopted", [{"region": "eu", "replicas": 1}])
    owned = parse_scenario(changed, Path("small.yaml")).fleet()[GatewayId("us/gw")]
    assert [spec.place.region for spec, _ in owned] == ["us", "us", "us", "eu"]


def test_an_engine_has_no_more_room_than_its_scenario_or_its_preset_gives_it() -> None:
    def engine(**more: Any) -> EngineConfig:
        scenario = parse_scenario(document(**more), Path("small.yaml"))
        return scenario.fleet()[GatewayId("us/gw")][0][1]

    plain = engine()
    small = engine(kv_tokens=1_000)
    assert (small.kv_tokens, small.context_tokens_max) == (992, 992), "whole blocks, and no request longer than that"
    assert replace(small, kv_blocks=plain.kv_blocks, context_tokens_max=plain.context_tokens_max) == plain
    assert engine(kv_tokens=10 * plain.kv_tokens) == plain


def test_without_rules_all_jurisdictions_are_open_and_with_them_only_those() -> None:
    closed = document()
    closed["regions"]["eu"] |= {"process": {"regions": ["eu"]}, "tenants": {"acme": {"process": {"regions": ["us"]}}}}
    scenario = parse_scenario(closed, Path("small.yaml"))
    assert scenario.policy_of("us").process.allows(scenario.place("eu"))
    assert not scenario.policy_of("eu").process.allows(scenario.place("us"))
    assert scenario.policy_of("eu").tenants[TenantName("acme")].process.allows(scenario.place("us"))


def test_round_trips_are_read_from_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "ways.csv").write_text("us,eu,70.5\n")
    scenario = parse_scenario(document(round_trips="ways.csv"), tmp_path / "small.yaml")
    assert scenario.round_trips_ns()[RegionName("eu"), RegionName("us")] == 70_500_000


def test_a_recorded_rate_is_read_from_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "week.csv").write_text("minute,per_minute\n0,10\n720,30\n")
    recorded = {"file": "week.csv", "day": "240s", "peak": 6, "shift_hours": 12}
    clients = [{"region": "us", "workload": "chat", "arrivals": {"recorded": recorded}}]
    arrivals = parse_scenario(document(clients=clients), tmp_path / "small.yaml").clients[0].arrivals
    assert arrivals is not None
    assert [arrivals.as_curve().rate_at(at_s) for at_s in (0, 120, 240)] == [6, 2, 6]
    assert arrivals.shift_hours == 12


def test_questions_are_read_from_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "questions").write_text('Why?\n{"turns": ["How?", "And then?"]}\n{}\n')
    workloads = {
        "tree": {"tree": {}, "questions": "questions"},
        "chat": {"conversations": {}, "questions": "questions"},
    }
    scenario = parse_scenario(document(workloads=workloads), tmp_path / "small.yaml")
    programs = {name: list(islice(scenario.workload(name).programs("us/0"), 20)) for name in workloads}
    assert {program.steps[0].text for program in programs["tree"]} == {"Why?", "How?"}
    asked = {tuple(step.text for step in program.steps) for program in programs["chat"]}
    assert ("How?", "And then?") in asked
    assert {len(program.steps) for program in programs["tree"]} == {15}


def test_one_user_does_many_things_at_once() -> None:
    workloads = {
        "chat": {"conversations": {}},
        "tree": {"tree": {}},
        "all": {"mixture": [{"workload": "chat"}, {"workload": "tree"}]},
    }
    clients = [{"region": "us", "workload": "all", "clients": 3, "one_user": True}]
    workload = parse_scenario(document(workloads=workloads, clients=clients), Path("small.yaml")).workload_of(0)
    programs = [program for user in ("us/0", "us/1") for program in islice(workload.programs(user), 8)]
    assert len({program.session_key for program in programs}) == 1
    assert {len(program.steps) == 15 for program in programs} == {True, False}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nope": 1}, "small.yaml: nope: is not a known key"),
        ({"duration": "10"}, "duration: '10' is not a duration"),
        ({"warm_up": "10s"}, "warm_up: should be shorter than duration"),
        ({"preset": "h100"}, "preset: 'h100' is no preset"),
        ({"prefix_block": "100B"}, "prefix_block: should be a multiple of 64 B"),
        ({"round_trips": []}, "round_trips: eu to us is missing"),
        ({"round_trips": "nowhere.csv"}, "nowhere.csv cannot be read"),
        ({"balancer_region": "mars"}, "balancer_region: there is no region 'mars'"),
        ({"clients": []}, "clients: should not be empty"),
        ({"clients": [{"region": "mars", "workload": "chat", "clients": 1}]}, "clients[0].region: there is no region"),
        ({"clients": [{"region": "us", "workload": "chess", "clients": 1}]}, "clients[0].workload: there is no work"),
        ({"clients": [{"region": "us", "workload": "chat"}]}, "clients[0]: should hold one of clients, arrivals"),
        ({"workloads": {"chat": {}}}, "workloads.chat: should hold one of conversations"),
        ({"workloads": {"chat": {"tree": {"branchs": 2}}}}, "workloads.chat.tree.branchs"),
        (
            {"workloads": {"chat": {"conversations": {}, "questions": "gone"}}},
            "workloads.chat.questions: gone cannot be",
        ),
        ({"workloads": {"chat": {"bursts": {}, "questions": "gone"}}}, "only a tree or conversations ask them"),
        (
            {"clients": [{"region": "us", "workload": "chat", "arrivals": {"recorded": {"file": "x", "day": "1s"}}}]},
            "file: x: x cannot be read",
        ),
        (
            {
                "clients": [
                    {
                        "region": "us",
                        "workload": "chat",
                        "arrivals": {"recorded": {"file": [[0, 1], [1, 2]], "day": "1s"}},
                    }
                ]
            },
            "should hold one of peak, mean",
        ),
        ({"runs": [{"system": "magic"}]}, "runs[0].system"),
        ({"runs": [{}, {}]}, "runs: two are called 'nightside'"),
        ({"runs": [{"placement": {"policy": "magic"}}]}, "runs[0].placement.policy: 'magic' is none of cost, prefix"),
        (
            {"faults": [{"kind": "replica_crash", "target": "us/9", "at": "1s", "lasts": "1s"}]},
            "faults[0]: there is no 'us/9' for replica_crash",
        ),
        (
            {"faults": [{"kind": "partition", "target": "us", "at": "1s", "lasts": "1s"}]},
            "faults[0]: partition takes two regions",
        ),
        (
            {"faults": [{"kind": "replica_slow", "target": "us/0", "at": "1s", "lasts": "1s"}]},
            "faults[0]: replica_slow needs an amount",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    assert named in complaint(**changes)


def test_keys_are_set_by_their_path() -> None:
    changed = {"a": [{"b": 1}], "c": {}}
    set_key(changed, "a.0.b", 2)
    set_key(changed, "c.d.e", 3)
    assert changed == {"a": [{"b": 2}], "c": {"d": {"e": 3}}}
    with pytest.raises(ConfigError, match=r"a\.5\.b: there is no '5'"):
        set_key(changed, "a.5.b", 1)


def test_merging_leaves_both_sides_as_they_were() -> None:
    base, over = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merged(base, over) == {"a": {"b": 3, "c": 2}}
    assert base == {"a": {"b": 1, "c": 2}}


def test_a_disaggregated_pool_is_the_first_gateways_beside_its_other_replicas() -> None:
    pool = {"prefill_workers": 2, "decode_workers": 3, "groups": 2}
    changed = merged(document(), {"regions": {"us": {"gateways": 2, "disaggregated": pool}}})
    scenario = parse_scenario(changed, Path("small.yaml"))
    owned = scenario.fleet()
    roles = [spec.role for spec, _ in owned[GatewayId("us/gw0")]]

    assert (roles.count(ReplicaRole.PREFILL), roles.count(ReplicaRole.DECODE)) == (2, 6)
    assert all(spec.role is ReplicaRole.UNIFIED for spec, _ in owned[GatewayId("us/gw1")])
    (spec,) = scenario.pools(scenario.runs[0]).values()
    assert (spec.connector, spec.decode_batch_max, spec.lease_ns) == (Connector.NIXL, 32, 30_000_000_000)
    assert {name: config.ranks for name, (config, _) in scenario.decode_groups().items()} == {
        "us/decode0": 3,
        "us/decode1": 3,
    }


def test_a_decode_worker_has_room_for_the_longest_request() -> None:
    set_key(
        changed := document(), "regions.us.disaggregated", {"prefill_workers": 1, "decode_workers": 1, "kv_tokens": 10}
    )
    assert "regions.us.disaggregated.kv_tokens: should be at least" in complaint(**changed)


def test_pools_go_with_a_controller() -> None:
    pool = {"prefill_workers": 1, "decode_workers": 1}
    set_key(changed := document() | {"controller": {"region": "us"}}, "regions.us.disaggregated", pool)
    set_key(changed, "regions.us.pools", {"short": {"replicas": 1}})
    assert len(parse_scenario(changed, Path("small.yaml")).pools(RunSection())) == 2


def test_a_run_may_decode_all_pools_by_another_policy() -> None:
    pool = {"prefill_workers": 1, "decode_workers": 1, "decode": {"policy": "random"}}
    set_key(changed := document(), "regions.us.disaggregated", pool)
    changed["runs"] = [{"name": "own"}, {"name": "other", "decode": {"policy": "br_h"}}]
    scenario = parse_scenario(changed, Path("small.yaml"))
    found = [decode_of(spec).policy for run in scenario.runs for spec in scenario.pools(run).values()]
    assert found == [DecodePolicyName.RANDOM, DecodePolicyName.BR_H]


def test_a_policy_that_does_not_suit_a_pools_connector_is_refused() -> None:
    pool = {"prefill_workers": 1, "decode_workers": 1, "connector": "mooncake", "decode": {"policy": "br_h"}}
    set_key(changed := document(), "regions.us.disaggregated", pool)
    assert "pool us/disaggregated: decode: policy br_h" in complaint(**changed)
