from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.bench.relay.figures import DIRECT, RelayFigure, RelayReading
from loadgen.bench.relay.page import (
    Aim,
    RelayStory,
    aim_rows,
    cell,
    number,
    page_of,
    part_rows,
    published_rows,
    ratio_rows,
    setting_rows,
    table,
)
from loadgen.studies.numbers import Middle

READINGS = [
    RelayReading(1, "ours", RelayFigure.CPU_PER_CHUNK, 30.0),
    RelayReading(2, "ours", RelayFigure.CPU_PER_CHUNK, 20.0),
    RelayReading(1, "theirs", RelayFigure.CPU_PER_CHUNK, 20.0),
    RelayReading(2, "theirs", RelayFigure.CPU_PER_CHUNK, 20.0),
    RelayReading(1, "ours twice", RelayFigure.CPU_PER_CHUNK, 90.0),
    RelayReading(1, "ours twice", RelayFigure.CPU_PER_CHUNK, 50.0, "near"),
    RelayReading(1, "ours twice", RelayFigure.CPU_PER_CHUNK, 40.0, "far"),
    RelayReading(1, DIRECT, RelayFigure.REQUESTS_PER_S, 20_000.0),
]
STORY = RelayStory(
    readings=READINGS,
    relays={"ours": "everything on", "ours twice": "and a peer", "theirs": "1.2: as it comes"},
    faults={"gone": "not available: no wheel for this machine"},
    machine={"cpu": "a fast one"},
    conditions=["seed 1"],
    command="nightside bench relay",
    date="2026-11-21",
    ours="ours",
    aims=(Aim(RelayFigure.CPU_PER_CHUNK, 1.2, "theirs"), Aim(RelayFigure.ADDED_TTFT_P50, 1.0)),
)


@pytest.mark.parametrize(
    ("value", "text"), [(0.126, "0.13"), (9.99, "9.99"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_a_cell_shows_the_spread_where_there_is_one() -> None:
    assert cell(Middle(25.0, 20.0, 30.0)) == "25.0 (20.0–30.0)"
    assert cell(Middle(25.0, 25.0, 25.0)) == "25.0"
    assert cell(None) == "–"


def test_the_table_has_a_column_for_each_relay_and_no_row_without_figures() -> None:
    assert table(STORY) == [
        ["", "ours", "ours twice", "theirs", "direct"],
        ["CPU per streamed chunk (µs)", "25.0 (20.0–30.0)", "90.0", "20.0", "–"],
        ["rate at saturation (requests/s)", "–", "–", "–", "20,000"],
    ]


def test_ratios_are_ours_to_theirs_and_ours_with_more_to_ours() -> None:
    assert ratio_rows(STORY) == [
        ["", "ours twice / ours", "ours / theirs"],
        ["CPU per streamed chunk (µs)", "3.00", "1.25 (1.00–1.50)"],
    ]


def test_an_aim_is_judged_by_the_median_and_left_out_where_nothing_was_measured() -> None:
    assert aim_rows(STORY) == [
        ["aim", "measured", "reached"],
        ["CPU per streamed chunk ≤ 1.2 × theirs", "1.25 (1.00–1.50)", "no"],
    ]
    content = replace(STORY, aims=(Aim(RelayFigure.CPU_PER_CHUNK, 30.0),))
    assert aim_rows(content)[1:] == [["CPU per streamed chunk ≤ 30 µs", "25.0 (20.0–30.0)", "yes"]]


def test_processes_are_told_apart() -> None:
    assert [row[:2] + row[3:] for row in part_rows(STORY)[1:]] == [
        ["ours twice", "near", "50.0"],
        ["ours twice", "far", "40.0"],
    ]


def test_a_setting_has_a_row_beside_ours_and_no_column_among_the_relays() -> None:
    plain = [*READINGS, RelayReading(1, "ours", RelayFigure.CPU_PER_REQUEST, 300.0)]
    readings = [*plain, RelayReading(1, "ours quiet", RelayFigure.CPU_PER_REQUEST, 150.0)]
    before = replace(STORY, readings=plain)
    story = replace(
        STORY, readings=readings, relays={**STORY.relays, "ours quiet": "no log"}, set_otherwise=["ours quiet", "ours?"]
    )
    assert setting_rows(story) == [
        ["", "CPU per request, not streamed (µs)", "times"],
        ["ours", "300", "–"],
        ["ours quiet", "150", "0.50"],
    ]
    assert table(story) == table(before)
    assert ratio_rows(story) == ratio_rows(before)
    assert "## The same gateway, set otherwise" in page_of(story)
    assert not setting_rows(STORY)


def test_the_page_has_no_empty_sections_and_names_what_was_not_measured() -> None:
    text = page_of(STORY)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# What a relay costs",
        "## Ratios",
        "## Aims",
        "## By process",
        "## Conditions",
        "## Not measured",
    ]
    assert "- `gone`: not available: no wheel for this machine" in text
    assert "`nightside bench relay`" in text
    assert "| CPU per streamed chunk (µs) | 25.0 (20.0–30.0) | 90.0 | 20.0 | – |" in text


def test_what_people_wrote_stands_in_the_page_as_it_is() -> None:
    assert "\n\n## What paid\n\nFewer copies.\n\n## Conditions" in page_of(STORY, "## What paid\n\nFewer copies.\n")


def test_published_loads_stand_in_a_table_of_their_own_beside_what_was_published() -> None:
    jobs = [
        RelayReading(1, "ours", RelayFigure.LONG_JOB_CORES, 4.0),
        RelayReading(1, "theirs", RelayFigure.LONG_JOB_CORES, 9.0),
    ]
    story = replace(STORY, readings=[*READINGS, *jobs])
    head, *rows, last = published_rows(story)
    assert [row[0] for row in rows] == ["ours", "theirs"]
    at = head.index("llm-d's long job: 98.8 requests/s of 100,000 and 1,000 tokens (cores)")
    assert [row[at] for row in rows] == ["4.00", "9.00"]
    assert last[0] == "published, not measured here"
    assert last[at] == "llm-d: 53.8"
    assert table(story) == table(STORY)
    assert "## Loads that others publish" in page_of(story)
    assert not published_rows(STORY)
