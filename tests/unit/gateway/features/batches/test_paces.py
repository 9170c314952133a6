from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.vocabulary import ModelName, RegionName
from gateway.features.batches.paces import LinePace, ModelPaces
from tests.support.core import MODEL

MS = 1_000_000
HERE, THERE = RegionName("here"), RegionName("there")
near: Any = pytest.approx


def test_no_request_tells_nothing() -> None:
    paces = ModelPaces()
    assert (paces.times(MODEL, HERE), paces.output_tokens(MODEL), paces.line_ns(MODEL)) == (None, None, None)
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


def test_a_region_without_requests_goes_by_the_others() -> None:
    paces = ModelPaces()
    paces.add(MODEL, HERE, 0, 10, 100 * MS)
    paces.add(ModelName("other"), THERE, 0, 10, 900 * MS)
    here, there = paces.times(MODEL, HERE), paces.times(MODEL, THERE)
    assert here == there is not None
    assert (paces.output_tokens(MODEL), paces.line_ns(MODEL)) == (10, 100 * MS)


def test_many_models_do_not_grow_the_memory() -> None:
    paces = ModelPaces()
    for number in range(2_000):
        paces.add(ModelName(f"m{number}"), HERE, 1, 1, MS)
    assert len(paces._paces) == 512
    assert paces.times(ModelName("m0"), HERE) is not None
    assert paces.times(ModelName("m1999"), HERE) is None
