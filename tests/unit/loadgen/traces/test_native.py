from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.traces.agentic import parse_agentic
from loadgen.traces.mooncake import parse_mooncake
from loadgen.traces.native import native_lines, parse_native
from loadgen.traces.rows import Trace


def line(**fields: Any) -> str:
    return json.dumps({"input_tokens": 40, "output_tokens": 5} | fields)


def comparable(trace: Trace) -> list[tuple[object, ...]]:
    """Rows without the names of unshared blocks."""
    return [
        (row.session, row.passage.space, row.passage.runs, row.passage.block_tokens, row.passage.tokens,
         row.output_tokens, row.after, row.think_s, row.api_s, None if row.after is not None else row.at_s)
        for row in trace.rows
    ]  # fmt: skip


def test_a_row_says_what_it_says() -> None:
    rows = parse_native(
        [
            line(at=1.5, session="s", id="a", blocks=[[1, 2]], region="eu", tenant="acme"),
            line(after="a", session="s", think=2, api=1),
        ]
    ).rows
    assert (rows[0].at_s, rows[0].session, rows[0].region, rows[0].tenant) == (1.5, "s", "eu", "acme")
    assert (rows[1].after, rows[1].think_s, rows[1].api_s) == (0, 2, 1)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (line(), "should hold one of at, after"),
        (line(at=1, after="a"), "should hold one of at, after"),
        (line(after="b", session="s"), "waits for 'b' of its session, which is not there before it"),
        (line(at=1, id="a", session="s"), "another row of its session has the id 'a'"),
        (line(at=1, blocks=[[3, 1]]), "a range of blocks ends before it begins"),
        (line(at=1, blocks=[[0, 3]]), "4 blocks of 16 are more than 40 tokens"),
        (line(at=1, speed=2), "unknown field `speed`"),
        (line(at=-1), ">= 0"),
        ("[]", "Expected `object`"),
    ],
)
def test_rows_that_make_no_sense_are_counted(row: str, complaint: str) -> None:
    trace = parse_native([line(at=0, session="s", id="a"), row, line(at=2)])
    assert len(trace.rows) == 2
    assert trace.unreadable.count == 1
    assert complaint in trace.unreadable.first[0]


def test_whoever_waits_for_an_unreadable_row_is_unreadable() -> None:
    trace = parse_native([line(at=0, session="s", id="a", think="x"), line(after="a", session="s"), line(at=1)])
    assert len(trace.rows) == 1
    assert trace.unreadable.count == 2


def test_other_traces_can_be_said_in_it() -> None:
    mooncake = parse_mooncake(
        json.dumps({"timestamp": at, "input_length": 600, "output_length": 3, "hash_ids": [0, 5]}) for at in (0, 1, 5)
    )
    agentic = parse_agentic(
        json.dumps({"s": "s", "i": i, "t": i * 9.0, "in": 70, "out": 1, "api": 1.5, "think": 2.5, "blk": [[1, 1]]})
        for i in range(3)
    )
    for trace in (mooncake, agentic):
        again = parse_native(text.decode() for text in native_lines(trace))
        assert comparable(again) == comparable(trace)
        assert again.unreadable.count == 0
