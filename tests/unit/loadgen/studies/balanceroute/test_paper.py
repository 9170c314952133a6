"""The published tables give the published gains."""

from __future__ import annotations

import pytest

from loadgen.studies.balanceroute.paper import AIMS, CAPPED_8, HEAVY_8, JSQ, published, running_at_most


def test_the_aims_are_what_its_first_table_says() -> None:
    strongest = max(HEAVY_8[name].tokens_per_s for name in list(HEAVY_8)[:4])
    for run, (divided, faster) in AIMS.items():
        assert HEAVY_8[JSQ].gap / HEAVY_8[run].gap == pytest.approx(divided, abs=0.06)
        assert HEAVY_8[run].tokens_per_s / strongest == pytest.approx(faster, abs=0.01)


def test_a_load_is_held_against_the_table_of_its_kind() -> None:
    assert published("capped", 8) is CAPPED_8
    assert published("reasoning", 8) is published("prompts", 8) is HEAVY_8
    assert published("capped", 4) == published("reasoning", 32) == {}


def test_no_more_run_at_a_time_than_littles_law_allows() -> None:
    assert running_at_most(HEAVY_8, JSQ, 8) == pytest.approx(842.8 * 0.0832 / 8)
