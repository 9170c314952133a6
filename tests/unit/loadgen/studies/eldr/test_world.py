from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.features.expert_locality.signature import Comparer
from gateway.core.nearness import SignatureState
from gateway.features.expert_locality.fit.eldr import EldrRules, fit_eldr
from loadgen.studies.eldr.generator import Generator, ModelShape, Spread
from loadgen.studies.eldr.world import Drawn, EldrFleet, EngineCosts, Play, drawn_from, play

SHAPE = ModelShape(3, 32, 4)
SHARES = {"a": 1.0, "b": 1.0}
COSTS = EngineCosts(base_ns=1_000_000, expert_ns=100_000.0)
SETTING = Play(
    "round_robin", rate=60.0, seconds=4.0, warm_up_s=1.0, output_tokens=60, fleet=EldrFleet(2, 4), costs=COSTS
)


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    generator = Generator(SHAPE, Spread(0.3, 1.8, 0.2, 0.3), 3)
    calibration, test = generator.draw(SHARES, 60, 1), generator.draw(SHARES, 40, 2)
    made = fit_eldr(calibration.calibration(), EldrRules(4, held_out=0.0))
    return drawn_from(test, Comparer(made.artifact), shares=SHARES)


def test_locality_reads_fewer_experts_and_takes_less_time_a_token(drawn: Drawn) -> None:
    robin, eldr = play(SETTING, drawn), play(replace(SETTING, policy="eldr"), drawn)
    assert eldr["experts"] < 0.9 * robin["experts"]
    assert eldr["tpot_p50_ms"] < robin["tpot_p50_ms"]
    assert eldr["signatures"] == {"used": pytest.approx(240, abs=60)}
    assert robin["finished"] > 100


def test_equal_settings_give_equal_figures(drawn: Drawn) -> None:
    setting = replace(SETTING, policy="eldr")
    assert play(setting, drawn) == play(setting, drawn)
    assert play(setting, drawn) != play(replace(setting, seed=2), drawn)


def test_prompts_that_are_known_are_read_at_once_and_counted_whole_or_not_at_all(drawn: Drawn) -> None:
    cached = replace(SETTING, policy="eldr", fleet=replace(SETTING.fleet, prefix_blocks=1_000))
    whole, partly = play(cached, drawn), play(replace(cached, whole_signatures=False), drawn)
    assert whole["ttft_p50_ms"] < play(replace(SETTING, policy="eldr"), drawn)["ttft_p50_ms"]
    assert set(whole["signatures"]) == {SignatureState.USED}
    assert partly["signatures"][SignatureState.MISSING] > 100
    assert partly["experts"] > whole["experts"]


def test_another_artifact_serves_from_when_it_comes(drawn: Drawn) -> None:
    assert drawn.comparer is not None
    later = replace(drawn, later=(2.0, drawn), refit=(3.0, drawn.comparer, drawn.nearness, drawn.nearness))
    found = play(replace(SETTING, policy="eldr"), later)
    assert len(found["experts_by_part"]) == 3
    assert set(found["signatures"]) == {SignatureState.USED}


@pytest.mark.parametrize("policy", ["domain", "scored", "br_h", "br_h_local"])
def test_every_policy_serves_behind_a_barrier_too(drawn: Drawn, policy: str) -> None:
    fleet = replace(SETTING.fleet, group=2, shares_experts=True)
    setting = replace(SETTING, policy=policy, fleet=fleet, ages_known=True, output_sigma=0.6, seconds=2.0)
    found = play(setting, drawn)
    assert found["finished"] > 20
    assert found["tpot_p50_ms"] > 0
