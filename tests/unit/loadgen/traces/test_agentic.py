from __future__ import annotations

import json
from typing import Any

from loadgen.traces.agentic import parse_agentic


def line(index: int, **changes: Any) -> str:
    row = {"s": "one", "a": "main", "i": index, "t": 10.0 * index, "in": 130, "out": 7, "api": 2.0, "think": 3.0}
    return json.dumps(row | {"blk": [[1, 2]]} | changes)


def test_an_agent_waits_for_its_last_answer() -> None:
    rows = parse_agentic([line(0, think=0.0), line(1), line(2, **{"in": 300, "blk": [[1, 1], [4, 6]]})]).rows
    assert [row.after for row in rows] == [None, 0, 1]
    assert [row.think_s for row in rows] == [0, 3, 3]
    assert [row.api_s for row in rows] == [2, 2, 2]
    assert (rows[2].passage.runs, rows[2].passage.tokens, rows[2].passage.space) == (((1, 1), (4, 6)), 300, "one")


def test_a_sub_agent_waits_for_the_last_answer_before_it() -> None:
    rows = parse_agentic([line(0), line(1, a="sub", t=15.0, think=0.0), line(2), line(3, a="sub", t=40.0)]).rows
    assert [row.after for row in rows] == [None, 0, 0, 1]
    assert rows[1].think_s == 15 - 2


def test_pauses_that_nobody_recorded_follow_from_the_times() -> None:
    rows = parse_agentic([line(0, api=None), line(1, think=None), line(2, think=None, api=None)]).rows
    assert [row.think_s for row in rows] == [0, 10, 8]
    assert [row.api_s for row in rows] == [0, 2, 0]


def test_sessions_are_told_apart() -> None:
    rows = parse_agentic([line(0), line(0, s="two"), line(1), line(1, s="two")]).rows
    assert [(row.session, row.after) for row in rows] == [("one", None), ("one", 0), ("two", None), ("two", 0)]


def test_rows_that_make_no_sense_are_counted_and_the_next_waits_for_the_one_before() -> None:
    trace = parse_agentic([line(0), line(1, blk=[[5, 2]]), line(2, t=-1), line(3, **{"in": 64}), "{", line(4)])
    assert [row.after for row in trace.rows] == [None, 0]
    assert trace.unreadable.count == 4
    assert "ends before it begins" in trace.unreadable.first[0]
