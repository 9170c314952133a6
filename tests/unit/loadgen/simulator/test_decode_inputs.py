"""Inputs of simulated decode tiers: policies that look ahead or go by experts do so where a scenario gives them what
they need, and not without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.core.events import ArtifactReady, Event
from gateway.core.features.disaggregated.admissions import DecodeFigures
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.decode_pools import DecodePool
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.nearness import SignatureState
from gateway.core.vocabulary import GatewayId, PoolName
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.decode_inputs import DecodeInputs, expert_counts_of
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.pool_sections import DisaggregatedSection
from loadgen.simulator.prompts import empty_prompt
from loadgen.simulator.scenario import parse_scenario
from loadgen.simulator.world import World
from tests.support.core import US

POOL = PoolName("us/disaggregated")
PREDICTED = {"kind": "survival", "requests_min": 5, "refit_interval": "500ms"}
ANSWERS = {"median": 30, "sigma": 0.7, "minimum": 1, "maximum": 200}
PAUSES = {"median": 0.1, "sigma": 0.5, "minimum": 0.01, "maximum": 1}
PROMPTS = [empty_prompt("m", "t", 16).followed_by(b"application %d" % number * 8) for number in range(64)]


class _Lives(DecisionDigest):
    """Cores of all lives of the gateways."""

    def __init__(self) -> None:
        super().__init__()
        self.cores: list[GatewayCore] = []

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        super().on_start(spec, policy, core)
        self.cores.append(core)


def figures(policy: str, *, connector: str = "nixl", **more: Any) -> DecodeFigures:
    return decoded(policy, connector=connector, **more).tier.figures(0)


def decoded(policy: str | None, *, connector: str = "nixl", duration: str = "3s", **more: Any) -> DecodePool:
    """Pool after some seconds of load, `more` its keys."""
    sizes = {"prefill_workers": 1, "decode_workers": 2, "groups": 2, "batch": 2, "step": "5ms"}
    pool = sizes | {"connector": connector, "decode": {"policy": policy} if policy else {}} | more
    document = {
        "name": "pool",
        "duration": duration,
        "drain": "30s",
        "preset": "tiny",
        "prefix_block": "64B",
        "round_trips": [],
        "regions": {"us": {"jurisdiction": "US", "replicas": 0, "disaggregated": pool}},
        "workloads": {"chat": {"conversations": {"output_tokens": ANSWERS, "think_s": PAUSES}}},
        "clients": [{"region": "us", "workload": "chat", "clients": 12}],
        "runs": [{"system": "nightside"}],
    }
    scenario = parse_scenario(document, Path("pool.yaml"))
    lives = _Lives()
    World(scenario, scenario.runs[0], every_invariant=True, decisions=lives).play()
    (core,) = lives.cores
    there = decode_pools_of(core).get(POOL)
    assert there is not None
    return there


@pytest.mark.parametrize("kind", ["survival", "exact_match"])
def test_br_h_looks_ahead_once_a_predictor_is_fitted(kind: str) -> None:
    found = figures("br_h", prediction=PREDICTED | {"kind": kind})
    assert 0 < found.ticks_degraded < found.ticks / 2


def test_br_h_without_predictions_decides_as_br_0() -> None:
    found = figures("br_h")
    assert found.ticks_degraded == found.ticks > 0


def test_a_pool_that_names_no_policy_looks_ahead_once_its_predictor_is_better_than_none() -> None:
    assert decoded(None, prediction=PREDICTED).config.policy is DecodePolicyName.BR_H
    assert decoded(None, duration="200ms").config.policy is DecodePolicyName.BR_0


def test_too_few_requests_fit_no_predictor() -> None:
    found = figures("br_h", prediction=PREDICTED | {"requests_min": 100_000})
    assert found.ticks_degraded == found.ticks > 0


@pytest.mark.parametrize("policy", ["eldr", "br_h_local"])
def test_requests_are_compared_with_a_simulated_artifact(policy: str) -> None:
    found = figures(policy, expert_clusters=2)
    assert found.clusters == 2
    assert found.signatures[SignatureState.USED] > 10
    assert not found.signatures[SignatureState.STALE]


def test_eldr_without_an_artifact_goes_by_queues() -> None:
    signatures = figures("eldr").signatures
    assert signatures[SignatureState.UNFITTED] == sum(signatures.values()) > 10


def test_a_simulated_predictor_is_not_learned() -> None:
    with pytest.raises(ValidationError, match="'survival' or 'exact_match'"):
        DisaggregatedSection(prefill_workers=1, decode_workers=1, prediction={"kind": "learned"})  # type: ignore[arg-type]


def inputs(told: list[Event]) -> DecodeInputs:
    section = DisaggregatedSection(prefill_workers=1, decode_workers=1, expert_clusters=3)
    return DecodeInputs(GatewayCore(GatewayId("gw"), US, seed=1), Agenda(), told.append, {POOL: section})


def test_an_artifact_comes_and_goes_with_its_pool() -> None:
    told: list[Event] = []
    found = inputs(told)
    found.assigned([POOL, PoolName("unified")])
    found.assigned([POOL])
    found.assigned([])
    found.assigned([POOL])
    here, gone = ArtifactReady(POOL, "simulated", 3), ArtifactReady(POOL, "", 0)
    assert told == [here, gone, here]


def test_prompts_that_begin_alike_have_the_same_counts_and_some_prompts_have_none() -> None:
    counts = [expert_counts_of(prompt) for prompt in PROMPTS]
    assert counts[0] == expert_counts_of(PROMPTS[0].followed_by(b"a question"))
    assert 0 < counts.count(b"{}") < 16
    assert len(set(counts)) > 40
