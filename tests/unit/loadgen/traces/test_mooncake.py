from __future__ import annotations

import json

from loadgen.traces.mooncake import parse_mooncake


def line(at_ms: float, tokens: int, ids: list[int], output: int = 5) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids})


def test_blocks_become_a_passage() -> None:
    (row,) = parse_mooncake([line(1234, 1200, [0, 4, 5])]).rows
    assert row.at_s == 1.234
    assert (row.passage.runs, row.passage.block_tokens, row.passage.tokens) == (((0, 0), (4, 5)), 512, 1200)
    assert row.output_tokens == 5
    assert row.after is None


def test_requests_with_the_same_second_block_are_of_one_session() -> None:
    rows = parse_mooncake([line(1, 1000, [0, 1]), line(2, 1500, [0, 1, 2]), line(3, 900, [0, 9]), line(4, 9, [0])]).rows
    assert [row.session for row in rows] == ["1", "1", "9", "alone-3"]


def test_rounded_times_are_spread_evenly() -> None:
    trace = parse_mooncake([line(at, 9, [0]) for at in (0, 0, 0, 3000, 2999, 9000)])
    assert [row.at_s for row in trace.rows] == [0, 1, 2, 3, 4.5, 9]
    assert any("spread" in note for note in trace.notes)


def test_exact_times_are_left_alone() -> None:
    trace = parse_mooncake([line(at, 9, [0]) for at in (0, 700, 700, 1900)])
    assert [row.at_s for row in trace.rows] == [0, 0.7, 0.7, 1.9]


def test_rows_that_make_no_sense_are_counted() -> None:
    trace = parse_mooncake(
        [
            line(0, 9, [0]),
            "no json",
            '{"timestamp": 1}',
            line(-1, 9, [0]),
            line(1, 512, [0, 1]),
            line(1, 0, []),
            "",
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}',
        ]
    )
    assert len(trace.rows) == 1
    assert trace.unreadable.count == 6
    assert trace.unreadable.first[0].startswith("line 2: ")
    assert "2 blocks of 512 are more than 512 tokens" in trace.unreadable.first[3]
