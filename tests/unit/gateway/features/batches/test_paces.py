from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import RequestArrived
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.vocabulary import Decision, LegRole, ModelName, Outcome, PlacementReason, RegionName, RequestId
from gateway.features.batches.paces import REQUESTS_MIN, LinePace, ModelPaces
from gateway.request.legs import RequestSummary
from tests.support.core import MODEL, SECOND, US, desk, forward, policy, profile

MS = 1_000_000
HERE, THERE = RegionName("here"), RegionName("there")
near: Any = pytest.approx


def test_no_request_tells_nothing() -> None:
    assert ModelPaces().over(MODEL, [HERE]) is None
    assert LinePace().times() is None


SIZES = st.lists(st.tuples(st.integers(1, 9_000), st.integers(1, 900)), min_size=2)


@given(st.integers(0, MS), st.integers(0, 50 * MS), SIZES)
def test_times_of_prompts_and_answers_are_told_apart(
    prompt_ns: int, output_ns: int, sizes: list[tuple[int, int]]
) -> None:
    pace = LinePace()
    for prompt, output in [(1_000, 1), (1, 1_000), *sizes]:
        pace.add(prompt, output, prompt * prompt_ns + output * output_ns)
    times = pace.times()
    assert times is not None
    for prompt, output in sizes:
        told_ns = prompt * times.prompt_ns + output * times.output_ns
        assert told_ns == near(prompt * prompt_ns + output * output_ns, rel=0.01, abs=MS / 100)


@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 900), st.integers(1, 10**12)), min_size=1, max_size=30))
def test_no_time_is_negative(requests: list[tuple[int, int, int]]) -> None:
    pace = LinePace()
    for each in requests:
        pace.add(*each)
    times = pace.times()
    if times is None:
        assert not any(prompt or output for prompt, output, _ in requests)
    else:
        assert min(times.prompt_ns, times.output_ns) >= 0


def test_requests_of_one_size_say_what_one_more_of_them_takes() -> None:
    pace = LinePace()
    for _ in range(5):
        pace.add(200, 100, 3_000 * MS)
    times = pace.times()
    assert times is not None
    assert 200 * times.prompt_ns + 100 * times.output_ns == near(3_000 * MS)
    assert (pace.output_tokens, pace.took_ns) == (near(100), near(3_000 * MS))


def test_prompts_without_answers_have_a_pace_too() -> None:
    pace = LinePace()
    pace.add(100, 0, 50 * MS)
    times = pace.times()
    assert times is not None
    assert (times.prompt_ns, times.output_ns) == (near(MS / 2), 0)


def test_late_requests_count_more_than_early_ones() -> None:
    pace = LinePace()
    for took_ns in [MS] * 500 + [9 * MS] * 500:
        pace.add(0, 1, took_ns)
    assert pace.took_ns == near(9 * MS, rel=0.02)


def test_regions_are_told_together_and_others_count_for_nothing() -> None:
    paces = ModelPaces()
    for _ in range(REQUESTS_MIN):
        paces.add(MODEL, HERE, 0, 10, 100 * MS)
        paces.add(MODEL, THERE, 0, 30, 300 * MS)
        paces.add(ModelName("other"), HERE, 0, 10, 900 * MS)
    here, both = paces.over(MODEL, [HERE]), paces.over(MODEL, [HERE, THERE])
    assert here is not None is not both
    assert [(each.output_tokens, each.took_ns) for each in (here, both)] == [
        (near(10), near(100 * MS)),
        (near(20), near(200 * MS)),
    ]


def test_a_few_requests_are_not_told() -> None:
    paces = ModelPaces()
    for _ in range(REQUESTS_MIN - 1):
        paces.add(MODEL, HERE, 0, 10, MS)
    assert paces.over(MODEL, [HERE, THERE]) is None
    paces.add(MODEL, THERE, 0, 10, MS)
    assert paces.over(MODEL, [HERE, THERE]) is not None


def test_many_models_do_not_grow_the_memory() -> None:
    paces = ModelPaces()
    for number in range(2_000):
        paces.add(ModelName(f"m{number}"), HERE, 1, 1, MS)
    assert len(paces._paces) == 512


def record(*attempts: int, forwarded: bool = False) -> RequestRecord:
    """Record of a request with a leg of three seconds for each attempt, a second after the one before."""
    arrival = forward("r") if forwarded else RequestArrived(profile("r"), 10**18)
    made = RequestRecord(arrival, policy(US), 0)
    (at,) = desk(replicas=1).core.replicas
    decision = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0, ())
    for number, attempt in enumerate(attempts):
        began_ns = number * SECOND
        leg = LegState(
            attempt, 1, LegRole.WHOLE, at, decision, policy=made.policy, started_ns=began_ns, kept_blocks=0,
            replicas_here=1,
        )  # fmt: skip
        leg.ended_ns = began_ns + 3 * SECOND
        made.legs.append(leg)
    return made


@pytest.mark.parametrize(
    ("told", "outcome", "generates", "took_s"),
    [
        (record(1), Outcome.COMPLETED, True, 3),
        (record(1, 2, 2), Outcome.COMPLETED, True, 4),
        (record(1), Outcome.ABANDONED, True, None),
        (record(1), Outcome.COMPLETED, False, None),
        (record(1, forwarded=True), Outcome.COMPLETED, True, None),
        (record(), Outcome.COMPLETED, True, None),
        (None, Outcome.COMPLETED, True, None),
    ],
)
def test_own_requests_that_completed_count_by_their_last_attempt(
    told: RequestRecord | None, outcome: Outcome, generates: bool, took_s: int | None
) -> None:
    paces = ModelPaces()
    summary = RequestSummary(prompt_tokens=9_999, output_tokens=7, prompt_taken=True, generates=generates)
    paces.on_finished(profile("r", prompt="x" * 40), EndRequest(RequestId("r"), outcome, "", 1), summary, told)
    if took_s is None:
        assert not paces._paces
        return
    expected = LinePace()
    expected.add(10, 7, took_s * SECOND)
    assert paces._paces[MODEL, US.region]._sums == expected._sums, "the prompt counts by its bytes"
