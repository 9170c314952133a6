"""The page: the plan alone before the run, then every section, with verdicts that follow from the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from loadgen.studies.protocols.command import DATA
from loadgen.studies.protocols.page import NAME, page_of
from loadgen.studies.protocols.plan import FULL_CASES, FULL_SEEDS, LONG_OURS, LONG_SEEDS, SEEDS
from loadgen.studies.protocols.record import Key, ProtocolRecord, read_record
from tests.support.protocol_runs import LOADS, record
from tests.support.protocol_runs import SEEDS as SHORT_SEEDS

RESULTS = Path(__file__).parents[5] / "docs" / "results"
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


def test_the_committed_page_is_that_of_its_data() -> None:
    document = json.loads((RESULTS / DATA).read_text())
    assert page_of(read_record(document), document["loads"]) == (RESULTS / NAME).read_text()


def test_verdicts_follow_from_the_data() -> None:
    page = page_of(record(), LOADS)
    # All divide by ten; with unlimited caches all have 1.27 to 1.3 times the tokens. Each of four runs is compared in
    # two ways in 27 unlimited cases and in one way in 9; in limited ones, in 9 and 9.
    assert "Of 360 comparisons" in page
    assert "360 reach the" in page
    assert "**252 both**" in page
    assert "÷ 10.0 ✓ × 1.300 ✓" in page
    assert "25.0%, 75% right; as BR-0: 2 of 2" in page


def with_full(kept: ProtocolRecord, **figures: float) -> ProtocolRecord:
    """The record with these figures of BalanceRoute's long runs with full caches."""
    rows = {
        key: row | ({name: [value] for name, value in figures.items()} if is_ours_and_full(key) else {})
        for key, row in kept.rows.items()
    }
    return replace(kept, rows=rows)


def is_ours_and_full(key: Key) -> bool:
    return key[4] == FULL_CASES[0].times and key[5] in {each.title for each in LONG_OURS}


def verdict_of(page: str, says: str) -> str:
    """Rest of the row of a clause."""
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {says} |")]
    return row.removeprefix(f"| {says} | ").removesuffix(" |")


def test_each_clause_of_a_prediction_has_a_verdict() -> None:
    """All divide by ten there, with 0.9 of the tokens; then by one, with 0.99 of them."""
    tokens, nearer = "0.985 to 1.005 of JSQ's tokens per second", "… nearer to 1 than the short runs"
    runs = len(FULL_CASES) * len(LONG_OURS)
    page = page_of(record(), LOADS)
    assert verdict_of(page, tokens) == f"{runs} | 0 | no"
    assert verdict_of(page, nearer) == f"{runs} | 0 | no"
    page = page_of(with_full(record(), gap=1_000.0 * 16 * 1.12, tokens_per_s=792.0), LOADS)
    assert verdict_of(page, tokens) == f"{runs} | {runs} | yes"
    assert verdict_of(page, nearer) == f"{runs} | {runs} | yes"
    assert verdict_of(page, "its imbalance divided by 0.9 to 1.05") == f"{runs} | {runs} | yes"
    assert "| ~~what the tier does not know of an engine's reservations costs less than 1 %~~ |" in page


def test_clauses_on_runs_that_were_not_played_have_no_verdict() -> None:
    whole = record()
    rows = {key: row for key, row in whole.rows.items() if key[4] == 1}
    page = page_of(ProtocolRecord(whole.seeds, [], [], rows), LOADS)
    assert verdict_of(page, "0.985 to 1.005 of JSQ's tokens per second") == "– | – | not played yet"
    assert "0 of 0" not in page
    assert "Of 0" not in page


def test_what_longer_runs_tell_is_said_by_load() -> None:
    page = page_of(record(), LOADS)
    assert "there is none of the load, procedure and cache of 132 of the 252:" in page
    assert "24 on Mooncake, 84 on reasoning, 24 on Azure 2024." in page
    assert "252 of the 252 hold at least 0.95 of them" in page


def test_rows_with_full_caches_name_their_seeds() -> None:
    page = page_of(record(), LOADS)
    assert f"| as planned first; {len(SHORT_SEEDS)} seeds, " in page
    assert f"planned first have seeds {', '.join(map(str, SHORT_SEEDS))}, the long ones" in page
