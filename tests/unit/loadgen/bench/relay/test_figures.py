from __future__ import annotations

from loadgen.bench.relay.figures import (
    DIRECT,
    RelayFigure,
    RelayReading,
    as_document,
    by_round,
    parts_of,
    ratio,
    with_added,
)
from loadgen.studies.numbers import Middle

CHUNK = RelayFigure.CPU_PER_CHUNK
TTFT = RelayFigure.TTFT_P99


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was twice as slow in the second round, for both relays alike."""
    readings = [
        RelayReading(1, "ours", CHUNK, 20.0),
        RelayReading(1, "theirs", CHUNK, 10.0),
        RelayReading(2, "ours", CHUNK, 40.0),
        RelayReading(2, "theirs", CHUNK, 20.0),
        RelayReading(3, "ours", CHUNK, 999.0),
    ]
    assert ratio(readings, CHUNK, "ours", "theirs") == Middle(2.0, 2.0, 2.0)
    assert ratio(readings, CHUNK, "ours", "nobody") is None


def test_what_a_relay_adds_is_told_against_no_relay_in_the_same_round() -> None:
    readings = [
        RelayReading(1, DIRECT, TTFT, 1.0),
        RelayReading(1, "ours", TTFT, 1.5),
        RelayReading(2, DIRECT, TTFT, 3.0),
        RelayReading(2, "ours", TTFT, 3.25),
        RelayReading(3, "ours", TTFT, 7.0),
    ]
    added = with_added(readings)
    assert by_round(added, "ours", RelayFigure.ADDED_TTFT_P99) == {1: 0.5, 2: 0.25}
    assert by_round(added, DIRECT, RelayFigure.ADDED_TTFT_P99) == {}
    assert added[: len(readings)] == readings


def test_parts_stand_apart_from_their_relay() -> None:
    readings = [
        RelayReading(1, "forward", CHUNK, 30.0),
        RelayReading(1, "forward", CHUNK, 10.0, "near"),
        RelayReading(1, "forward", CHUNK, 20.0, "far"),
    ]
    assert by_round(readings, "forward", CHUNK) == {1: 30.0}
    assert parts_of(readings, "forward") == ["near", "far"]
    assert list(as_document(readings)) == ["forward", "forward: near", "forward: far"]
