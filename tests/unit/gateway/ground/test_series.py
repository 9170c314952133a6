from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.ground.series import Distribution, Tally


def page_of(*series: Tally | Distribution) -> list[str]:
    registry = CollectorRegistry()
    for each in series:
        registry.register(each)
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_tally_counts_by_its_labels() -> None:
    tally = Tally("asked", "How often.", ("model", "end"))
    tally.add("a", "good")
    tally.add("a", "good", amount=2)
    tally.add("a", "bad")
    assert page_of(tally) == ['asked_total{end="good",model="a"} 3.0', 'asked_total{end="bad",model="a"} 1.0']


def test_a_tally_without_labels_shows_its_zero() -> None:
    assert page_of(Tally("asked", "How often.", ())) == ["asked_total 0.0"]


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
