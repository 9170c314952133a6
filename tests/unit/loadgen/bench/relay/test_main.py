"""The part of each relay in the measurements."""

from __future__ import annotations

from loadgen.bench.relay.envoy import ENVOY
from loadgen.bench.relay.main import is_measured
from loadgen.bench.relay.measures import MeasureName
from loadgen.bench.relay.relays import ATTACHED, NIGHTSIDE, SIBLINGS, UNRESUMED
from loadgen.bench.relay.rivals import LITELLM
from loadgen.bench.relay.setting import Relay


def taken(relay: Relay, round_number: int = 1, *, is_all: bool = True) -> set[MeasureName]:
    return {each for each in MeasureName if is_measured(each, relay, round_number, is_all=is_all)}


def test_a_full_run_takes_all_of_ours_and_what_each_other_is_compared_by() -> None:
    assert taken(NIGHTSIDE) == set(MeasureName)
    assert taken(ENVOY) == set(MeasureName) - {MeasureName.STALLED, MeasureName.LARGE_BODY}
    assert taken(SIBLINGS) == {MeasureName.SATURATION}
    assert taken(UNRESUMED) == {MeasureName.REQUESTS}
    assert MeasureName.MEMORY not in taken(LITELLM)
    assert MeasureName.LONG_PROMPTS in taken(LITELLM)
    assert MeasureName.FIRST_TOKEN not in taken(LITELLM)
    assert MeasureName.LONG_PROMPTS not in taken(ATTACHED)


def test_what_differs_little_or_takes_long_is_taken_once() -> None:
    once = {MeasureName.MEMORY, MeasureName.IDLE, MeasureName.STALLED, MeasureName.LARGE_BODY}
    assert taken(NIGHTSIDE) - taken(NIGHTSIDE, 2) == once
    assert not taken(UNRESUMED, 2)


def test_a_measurement_that_is_asked_for_is_taken_of_every_relay_in_every_round() -> None:
    assert MeasureName.MEMORY in taken(LITELLM, 2, is_all=False)
    assert MeasureName.CHUNKS in taken(UNRESUMED, 2, is_all=False)
