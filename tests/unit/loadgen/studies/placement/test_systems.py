"""The compared systems; a baseline is as its authors describe it, independent of Nightside's defaults."""

from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import ExploreRule, PlacementPolicy, PushingMode
from loadgen.simulator.scenario import SYSTEMS as SYSTEM_SETTINGS
from loadgen.simulator.scenario import RunSection, System, merged
from loadgen.studies.placement.systems import (
    BASELINES,
    BEFORE,
    LLM_D,
    OURS,
    SKYWALKER,
    STRONGEST,
    SYSTEMS,
    run_of,
)

L4, H100 = "llama-3.1-8b-l4", "llama-3.1-8b-h100"


def config(name: str, preset: str = L4) -> CoreConfig:
    return RunSection.model_validate(dict(run_of(name, preset))).as_config()


def test_ours_is_what_a_region_file_has_that_says_nothing() -> None:
    assert config(OURS) == CoreConfig()


def test_what_we_were_is_written_out() -> None:
    before = config(BEFORE)
    assert before.placement.policy == PlacementPolicy.PREFIX
    assert (before.placement.explore_rule, before.pushing.in_band_credit) == (ExploreRule.WORTH, 4)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_names_its_policy(name: str) -> None:
    """A baseline without a policy would follow Nightside's default as soon as that changes."""
    run = merged(SYSTEM_SETTINGS[System(str(SYSTEMS[name]["system"]))], run_of(name, L4))
    assert run["placement"]["policy"] in set(PlacementPolicy)


@pytest.mark.parametrize("name", STRONGEST)
def test_routers_in_one_place_let_nobody_wait(name: str) -> None:
    assert config(name).pushing.mode is PushingMode.BLIND
    assert System(str(SYSTEMS[name]["system"])).is_global


def test_llm_d_is_told_how_fast_the_engines_prefill() -> None:
    assert config(LLM_D, L4).placement.affinity_prefill_bytes == 8333, "2,083 tokens a second, of four bytes"
    assert config(LLM_D, H100).placement.affinity_prefill_bytes == 125_000


def test_any_policy_may_be_tried_in_our_mesh() -> None:
    tried = run_of("lmetric", L4)
    assert (tried["system"], config("lmetric").placement.policy) == ("nightside", "lmetric")
    with pytest.raises(ValueError, match="nobody"):
        config("nobody")


def test_the_paper_is_the_paper() -> None:
    paper = config(SKYWALKER)
    assert (paper.placement.explore_rule, paper.pushing.in_band_credit) == (ExploreRule.SHARE, None)
