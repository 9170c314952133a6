"""The published tables give the published gains."""

from __future__ import annotations

import pytest

from loadgen.studies.balanceroute.paper import JSQ, PAPER, aims_of, published, running_at_most

HEAVY = PAPER.heavy[8]


@pytest.mark.parametrize("load", ["reasoning", "azure2024"])
def test_the_aims_are_what_its_first_table_says(load: str) -> None:
    rows = published(load, 8)
    strongest = max(rows[name].tokens_per_s for name in list(rows)[:4])
    for run, (divided, faster) in aims_of(load).items():
        assert rows[JSQ].gap / rows[run].gap == pytest.approx(divided, abs=0.06)
        assert rows[run].tokens_per_s / strongest == pytest.approx(faster, abs=0.01)


def test_a_load_is_held_against_the_gains_on_the_trace_of_its_kind() -> None:
    assert aims_of("capped") == aims_of("azure2024") == PAPER.aims["capped"]
    assert aims_of("reasoning") == aims_of("mooncake") == PAPER.aims["heavy"]
    assert aims_of("capped")["BR-0"] == (1.94, 1.076)


def test_a_load_is_held_against_the_table_of_its_kind() -> None:
    assert published("capped", 8) is published("azure2024", 8) is PAPER.capped[8]
    assert published("reasoning", 8) is published("prompts", 8) is HEAVY
    assert published("capped", 4) == published("reasoning", 32) == {}


def test_no_more_run_at_a_time_than_littles_law_allows() -> None:
    assert running_at_most(HEAVY, JSQ, 8) == pytest.approx(842.8 * 0.0832 / 8)
