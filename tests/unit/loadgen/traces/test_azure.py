from __future__ import annotations

from loadgen.traces.azure import parse_azure

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_times_count_from_the_first_request() -> None:
    rows = parse_azure(
        [HEADER, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50,396,109", "2024-05-10 00:00:00.5+00:00,1,0"]
    ).rows
    assert [round(row.at_s, 3) for row in rows[:2]] == [0, 3.319]
    assert [(row.passage.tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (1, 0)]


def test_inputs_share_nothing() -> None:
    one, other = parse_azure(["2023-11-16 18:15:46,64,1", "2023-11-16 18:15:46,64,1"]).rows
    assert not set(one.passage.names(16, 0)) & set(other.passage.names(16, 0))


def test_rows_that_make_no_sense_are_counted() -> None:
    trace = parse_azure(
        [
            HEADER,
            "2023-02-30 18:15:46,1,1",
            "2023-11-16 18:15:46,0,1",
            "2023-11-16 18:15:46,1",
            "2023-11-16 18:15:46,x,1",
        ]
    )
    assert trace.rows == []
    assert trace.unreadable.first == [
        "line 2: '2023-02-30 18:15:46' is no time",
        "line 3: 0 tokens are fewer than 1",
        "line 4: 2 columns where there should be 3",
        "line 5: 'x' is no number of tokens",
    ]
