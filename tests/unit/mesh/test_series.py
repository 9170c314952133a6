from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mesh.series import CounterSeries, Described, Distribution, Level, described


def page_of(*series: CounterSeries | Distribution | Level) -> list[str]:
    registry = CollectorRegistry()
    for each in series:
        registry.register(each)
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_tally_counts_by_its_labels() -> None:
    tally = CounterSeries("asked", "How often.", ("model", "end"))
    tally.add("a", "good")
    tally.add("a", "good", amount=2)
    tally.add("a", "bad")
    assert page_of(tally) == ['asked_total{end="good",model="a"} 3.0', 'asked_total{end="bad",model="a"} 1.0']


def test_a_tally_without_labels_shows_its_zero() -> None:
    assert page_of(CounterSeries("asked", "How often.", ())) == ["asked_total 0.0"]


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0.1, [1, 1, 1]), (0.5, [1, 1, 1]), (0.500001, [0, 1, 1]), (1.0, [0, 1, 1]), (7.0, [0, 0, 1])],
)
def test_a_value_is_counted_in_every_bucket_that_it_fits(value: float, counts: list[int]) -> None:
    distribution = Distribution("took", "How long.", (0.5, 1.0), ("model",))
    distribution.observe(value, "a")
    buckets = [line for line in page_of(distribution) if line.startswith("took_bucket")]
    assert buckets == [
        f'took_bucket{{le="{bound}",model="a"}} {float(count)}'
        for bound, count in zip(("0.5", "1.0", "+Inf"), counts, strict=True)
    ]


def test_a_distribution_tells_count_and_sum() -> None:
    distribution = Distribution("took", "How long.", (0.5,), ())
    distribution.observe(0.25)
    distribution.observe(2.0)
    page = page_of(distribution)
    assert "took_count 2.0" in page
    assert "took_sum 2.25" in page


def test_a_level_is_what_was_set_last_or_is_asked_for() -> None:
    level = Level("left", "How much.", ("role",))
    level.set(1, "a")
    level.set(2, "a")
    readings = iter((5.0, 6.0))
    level.follow(lambda: next(readings), "b")
    assert page_of(level) == ['left{role="a"} 2.0', 'left{role="b"} 5.0']
    assert page_of(level)[1] == 'left{role="b"} 6.0'


def test_a_level_without_labels_shows_its_zero() -> None:
    assert page_of(Level("left", "How much.", ())) == ["left 0.0"]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (CounterSeries("asked", "Why.", ("model",)), Described("asked_total", "counter", ("model",), "Why.")),
        (Distribution("took", "Why.", (1.0,), ("model",)), Described("took", "histogram", ("model",), "Why.")),
        (Level("left", "Why.", ()), Described("left", "gauge", (), "Why.")),
    ],
)
def test_what_a_series_is_can_be_told_before_it_has_a_value(
    series: CounterSeries | Distribution | Level, expected: Described
) -> None:
    assert [described(family) for family in series.collect()] == [expected]


def test_the_counts_of_all_series_are_summed_by_bucket() -> None:
    distribution = Distribution("took", "How long.", (0.5, 1.0), ("model",))
    assert distribution.summed() == (0, 0, 0)
    for model, value in (("a", 0.1), ("b", 0.2), ("b", 0.7), ("b", 9.0)):
        distribution.observe(value, model)
    assert distribution.summed() == (2, 1, 1)
