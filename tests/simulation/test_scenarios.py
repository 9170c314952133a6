"""Scenarios that ship with the product show the effects that they are made for, on shortened runs that must end
well.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.core.events import Event
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.nearness import SignatureState
from gateway.core.vocabulary import GatewayId, LegRole, PoolName, TenantName
from loadgen.figures import Figures
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.results import figures_of
from loadgen.simulator.scenario import load_scenario
from loadgen.simulator.tenant_watch import bound_of
from loadgen.simulator.world import World

FOLDER = Path(__file__).parents[2] / "loadgen/scenarios"


def totals(name: str, *runs: str, every_invariant: bool = False, **changes: Any) -> dict[str, Figures]:
    """Figures of each run, with invariants checked to the end."""
    scenario = load_scenario(FOLDER / f"{name}.yaml", changes)
    found = {}
    for run in (run for run in scenario.runs if run.name in runs):
        world = World(scenario, run, every_invariant=every_invariant)
        found[run.name] = figures_of(scenario, world.play())["total"]
        world.check_the_end()
    return found


@pytest.mark.nightly
def test_a_mesh_serves_a_skewed_day_better_than_regions_on_their_own() -> None:
    found = totals("skewed_day", "nightside", "region_local", duration="50s", warm_up="10s")
    mesh, alone = found["nightside"], found["region_local"]
    assert mesh["tokens_per_s"] > 1.05 * alone["tokens_per_s"]
    assert mesh["ttft_ms"]["p90"] < alone["ttft_ms"]["p90"] / 2
    assert mesh["forwarded_share"] > 0.1
    assert alone["forwarded_share"] == 0
    assert mesh["failed"] == alone["failed"] == 0


@pytest.mark.nightly
def test_figures_of_the_first_run_are_what_the_scenario_gives() -> None:
    """Figures of docs/how_to/simulator.md, which README repeats, are the first that a new user compares with the
    command's output."""
    found = totals("skewed_day", "nightside", "region_local", "skywalker")
    ours, alone, paper = (found[name] for name in ("nightside", "region_local", "skywalker"))
    rate, alone_rate, paper_rate = (f"{each['requests_per_s']:.0f}" for each in (ours, alone, paper))
    p90, alone_p90, paper_p90 = (f"{each['ttft_ms']['p90'] / 1000:.1f} s" for each in (ours, alone, paper))
    p50, alone_p50 = (f"{each['ttft_ms']['p50'] / 1000:.2f} s" for each in (ours, alone))
    said = (
        f"The mesh serves {rate} requests a second and nine first tokens of ten within {p90}; regions on their own "
        f"{alone_rate} and within {alone_p90}, SkyWalker's rule {paper_rate} and within {paper_p90}. The median first "
        f"token takes longer than in regions on their own: {p50} in place of {alone_p50}."
    )
    assert said in " ".join((FOLDER.parents[1] / "docs/how_to/simulator.md").read_text().split())


@pytest.mark.slow
def test_pushing_blindly_costs_what_the_paper_says_it_costs() -> None:
    found = totals("pushing", "pending", "blind", duration="50s", warm_up="10s", drain="300s")
    assert found["pending"]["ttft_ms"]["p90"] < found["blind"]["ttft_ms"]["p90"] / 4
    assert found["pending"]["tokens_per_s"] > 1.2 * found["blind"]["tokens_per_s"]


@pytest.mark.nightly
def test_a_prompt_that_only_another_region_knows_begins_sooner_there() -> None:
    scenario = load_scenario(FOLDER / "documents.yaml", {"duration": "60s", "warm_up": "30s"})
    ttft_s: dict[str, float] = {}
    for run in scenario.runs:
        world = World(scenario, run, every_invariant=True)
        figures = figures_of(scenario, world.play())
        world.check_the_end()
        ttft_s[run.name] = figures["regions"]["us-east-1"]["ttft_ms"]["mean"]
        assert figures["total"]["failed"] == 0
    assert ttft_s["digests"] < 0.7 * ttft_s["nightside"]


@pytest.mark.nightly
def test_a_bad_day_ends_well() -> None:
    found = totals("bad_day", "nightside", every_invariant=True)["nightside"]
    assert found["completed"] > 20 * found["failed"] > 0
    assert found["unfinished"] == 0


@pytest.mark.nightly
def test_overflow_lands_on_a_disaggregated_region_and_leaves_it() -> None:
    scenario = load_scenario(FOLDER / "disaggregated_day.yaml")
    world = World(scenario, scenario.runs[0], every_invariant=True)
    story = world.play()
    world.check_the_end()
    ways = Counter(
        (origin, target) for (origin, target, _), count in story.counts.placements.items() if origin != target and count
    )

    assert story.outcomes == {"completed": len(story.records)}
    assert any(target == "us-east-1" for _, target in ways)
    assert any(origin == "us-east-1" for origin, _ in ways)


class _ElsewhereDecoded(DecisionDigest):
    """Decode legs that gateways started in each pool away from its home, and the cores of all their lives."""

    def __init__(self) -> None:
        super().__init__()
        self.legs: Counter[str] = Counter()
        self.cores: list[GatewayCore] = []

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        super().on_start(spec, policy, core)
        self.cores.append(core)

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        super().on_step(now_ns, gateway_id, event, effects)
        for effect in effects:
            if isinstance(effect, StartLeg) and effect.role is LegRole.DECODE:
                home = effect.target.id.partition("/")[0]
                self.legs[home] += home != gateway_id.partition("/")[0]


@pytest.mark.nightly
def test_pools_whose_gateways_die_are_decoded_elsewhere_by_their_own_policies() -> None:
    faults = [
        {"kind": "gateway_crash", "target": f"{region}/gw", "at": f"{at}s", "lasts": "10s"}
        for region, at in (("ap-northeast-1", 6), ("eu-west-1", 17), ("us-east-1", 28))
    ]
    scenario = load_scenario(FOLDER / "moving_pools.yaml", {"duration": "44s", "faults": faults})
    elsewhere = _ElsewhereDecoded()
    world = World(scenario, scenario.runs[0], every_invariant=True, decisions=elsewhere)
    world.play()
    world.check_the_end()
    assert min(elsewhere.legs[region] for region in scenario.regions) > 20

    homes = {"us-east-1": DecodePolicyName.BR_H, "eu-west-1": DecodePolicyName.ELDR}
    for core in elsewhere.cores[:3]:
        policy = homes.get(core.place.region)
        own = decode_pools_of(core).get(PoolName(f"{core.place.region}/disaggregated"))
        assert own is not None
        figures = own.tier.figures(0)
        assert own.config.policy is (policy or DecodePolicyName.BR_0)
        if policy is DecodePolicyName.BR_H:
            assert figures.ticks_degraded < figures.ticks
        elif policy is DecodePolicyName.ELDR:
            assert figures.signatures[SignatureState.USED] > 20


def test_a_tenant_that_floods_has_its_limit_once_and_through_a_partition_once_on_each_side() -> None:
    cut = [
        {"kind": "partition", "target": "eu-west-1", "other": other, "at": "8s", "lasts": "16s"}
        for other in ("us-east-1", "ap-northeast-1")
    ]
    run = {"system": "nightside", "tenants": {"acme": {"concurrency_max": 24}}, "shares": {"reserved": "4s"}}
    scenario = load_scenario(
        FOLDER / "tenant_limits.yaml", {"duration": "32s", "warm_up": "2s", "faults": cut, "runs": [run]}
    )
    world = World(scenario, scenario.runs[0], every_invariant=True)
    world.play()
    world.check_the_end()
    acme, bound = world.tenants.tenants[TenantName("acme")], bound_of(24, 4, 0.2)
    assert 15 < acme.peak(0, 12) <= bound == 27, "what the other side had is reserved"
    assert bound < acme.peak(12, 24) <= 2 * bound
    assert 15 < acme.peak(26) <= bound
    assert list(world.tenants.tenants) == ["acme"]
    assert acme.refused


def test_short_requests_and_long_ones_go_to_pools_of_their_own() -> None:
    scenario = load_scenario(FOLDER / "two_pools.yaml", {"duration": "12s", "warm_up": "2s"})
    placed: Counter[str] = Counter()

    def follow(line: str) -> None:
        for pool in ("short", "long"):
            placed[pool] += line.count(f"/{pool}")

    world = World(
        scenario, scenario.runs[0], every_invariant=True, on_line=lambda line: follow(line.partition("->")[2])
    )
    story = world.play()
    world.check_the_end()
    assert story.outcomes.get("completed", 0) > 50
    assert placed["short"] > 2 * placed["long"] > 0
