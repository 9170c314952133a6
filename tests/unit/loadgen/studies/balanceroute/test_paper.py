"""The published tables give the published gains."""

from __future__ import annotations

import pytest

from loadgen.studies.balanceroute.paper import JSQ, PAPER, published, running_at_most

HEAVY = PAPER.heavy[8]


def test_the_aims_are_what_its_first_table_says() -> None:
    strongest = max(HEAVY[name].tokens_per_s for name in list(HEAVY)[:4])
    for run, (divided, faster) in PAPER.aims.items():
        assert HEAVY[JSQ].gap / HEAVY[run].gap == pytest.approx(divided, abs=0.06)
        assert HEAVY[run].tokens_per_s / strongest == pytest.approx(faster, abs=0.01)


def test_a_load_is_held_against_the_table_of_its_kind() -> None:
    assert published("capped", 8) is PAPER.capped[8]
    assert published("reasoning", 8) is published("prompts", 8) is HEAVY
    assert published("capped", 4) == published("reasoning", 32) == {}


def test_no_more_run_at_a_time_than_littles_law_allows() -> None:
    assert running_at_most(HEAVY, JSQ, 8) == pytest.approx(842.8 * 0.0832 / 8)
