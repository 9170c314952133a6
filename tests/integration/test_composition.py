"""A disaggregated pool under BR-H beside two other regions, with streams running: its gateway is killed, another one
adopts the pool, and the pool returns, with its policy and its history.
"""

from __future__ import annotations

import asyncio

import pytest

from loadgen.demo.region_files import has_addresses_of_its_own
from loadgen.studies.composition.cases import CASES, play
from loadgen.studies.composition.page import figures_of

STAGE_S = 5.0


@pytest.mark.nightly
@pytest.mark.skipif(not has_addresses_of_its_own(), reason="one name cannot lead to two gateways of one address")
def test_a_pool_moves_with_its_policy_and_its_history_and_breaks_no_sound_stream() -> None:
    outcome = asyncio.run(play(CASES[0], STAGE_S))
    figures = figures_of(outcome)
    assert figures.broken_sound == ()
    assert figures.unended == 0
    assert {policy for stage in figures.stages for policy in stage.policies} == {"br_h"}
    assert min(figures.histories) >= 1, "of the adopter, and of the home"
    assert sum(stage.out_of_home for stage in figures.stages) > 0
    assert sum(stage.into_pool for stage in figures.stages) > 0
    adopted = next(stage for stage in figures.stages if stage.stage == "adopted")
    assert adopted.load_max is not None, "requests run in the pool while it is away"
