"""Costs computed from the bench's readings."""

from __future__ import annotations

from loadgen.studies.resume.costs import costs_of, measure_added


def reading(number: int, relay: str, value: float, process: str = "") -> dict[str, object]:
    return {"round": number, "relay": relay, "process": process, "cpu_per_chunk_us": value}


def test_each_round_is_held_against_itself() -> None:
    """A machine that is slower in one round is slower for all relays."""
    readings = [
        *(reading(1, name, us) for name, us in (("nightside without resume", 20.0), ("nightside", 22.0))),
        *(reading(2, name, us) for name, us in (("nightside without resume", 40.0), ("nightside", 44.0))),
        reading(2, "nightside", 1.0, "gateway"),
        {"round": 1, "relay": "nightside", "process": "", "requests_per_s": 7.0},
    ]
    off, text = costs_of(readings)
    assert (off.setting, off.chunk_us.median, off.ratio.median) == ("off", 30.0, 1.0)
    assert (text.setting, text.chunk_us.median, text.ratio.low, text.ratio.high) == ("text", 33.0, 1.1, 1.1)


def test_a_round_that_was_not_measured_without_says_nothing() -> None:
    assert costs_of([reading(1, "nightside", 22.0)]) == []


def test_what_is_added_is_measured_of_text_and_of_token_ids() -> None:
    """The page reports the values; this test checks only that they are measured."""
    assert [name.split(",")[0] for name in measure_added(slices=1)] == ["text", "text", "token ids"]
