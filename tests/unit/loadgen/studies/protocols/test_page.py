"""The page: the plan alone before the run, then every section, with verdicts that follow from the data."""

from __future__ import annotations

from dataclasses import replace

from loadgen.studies.protocols.page import page_of
from loadgen.studies.protocols.plan import FULL_CASES, FULL_SEEDS, LONG_OURS, LONG_SEEDS, SEEDS
from loadgen.studies.protocols.record import ProtocolRecord
from tests.support.protocol_runs import LOADS, record

SECTIONS = (
    "What is reached",
    "Every case",
    "The scale of each case",
    "Longer runs",
    "Full caches",
    "What predictors foresee",
    "H and γ",
)


def test_before_the_run_there_is_the_plan_alone() -> None:
    page = page_of(ProtocolRecord(SEEDS, LONG_SEEDS, FULL_SEEDS, {}), LOADS)
    assert "not been played yet" in page
    assert "71201" in page
    assert "Predictions, written before the run" in page
    assert not [title for title in SECTIONS if f"\n## {title}" in page]


def test_after_the_run_every_section_is_there() -> None:
    page = page_of(record(), LOADS)
    for title in (*SECTIONS, "The plan", "Limits"):
        assert f"## {title}" in page, title
    assert "not been played yet" not in page
    assert "Played so far: 2 of the 10 seeds" in page
    assert "nan" not in page


def test_verdicts_follow_from_the_data() -> None:
    page = page_of(record(), LOADS)
    # All divide by ten; with unlimited caches all have 1.27 to 1.3 times the tokens. Each of four runs is compared in
    # two ways in 27 unlimited cases and in one way in 9; in limited ones, in 9 and 9.
    assert "Of 360 comparisons" in page
    assert "360 reach the" in page
    assert "**252 both**" in page
    assert "÷ 10.0 ✓ × 1.300 ✓" in page
    assert "25.0%, 75% right; as BR-0: 2 of 2" in page


def test_predictions_of_full_caches_are_counted() -> None:
    """All divide by ten there, with 0.9 of the tokens."""
    page = page_of(record(), LOADS)
    runs = len(FULL_CASES) * len(LONG_OURS)
    assert f"Of {runs} long runs" in page
    assert "division is as predicted in 0, tokens per second in 0, and by weight in 0." in page
    even = record()
    rows = {
        key: row | ({"gap": [1_920.0 * 9.6], "tokens_per_s": [800.0]} if key[4] == FULL_CASES[0].times else {})
        for key, row in even.rows.items()
    }
    page = page_of(replace(even, rows=rows), LOADS)
    assert f"division is as predicted in {runs}, tokens per second in {runs}, and by weight in {runs}." in page
