"""Scales hold what they show, and long lines become short ones without losing what matters."""

from __future__ import annotations

import re

import pytest

from loadgen.drawing import POINTS_MAX, Line, Scene, boxes, clock, over_time, points_max, thinned, ticks_to


def box(*values: float) -> dict[str, float]:
    return dict(zip(("p10", "p25", "p50", "p75", "p90", "p99", "mean"), values, strict=True))


def test_a_line_is_thinned_to_its_peaks_or_its_means() -> None:
    line = Line("run", [float(at) for at in range(1000)], [7.0 if at == 500 else 0.0 for at in range(1000)])
    peaks, means = thinned(line, 100, peaks=True), thinned(line, 100, peaks=False)
    assert len(peaks.values) == len(peaks.at_s) == 100
    assert (max(peaks.values), max(means.values)) == (7.0, 0.7)
    assert (peaks.at_s[0], peaks.at_s[50]) == (4.5, 504.5)
    assert thinned(line, 1000, peaks=True) is line
    assert len(thinned(line, 999, peaks=True).values) == 500


def test_many_lines_have_fewer_points_each() -> None:
    assert points_max(1) == POINTS_MAX
    assert points_max(600) == 100
    assert 0 < points_max(10_000) < 100


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (35, [0, 10, 20, 30, 40]),
        (3, [0, 1, 2, 3]),
        (0.4, [0, 0.1, 0.2, 0.3, 0.4]),
        (100, [0, 25, 50, 75, 100]),
        (0, [0, 1]),
    ],
)
def test_scales_are_round_and_hold_the_highest(top: float, ticks: list[float]) -> None:
    assert ticks_to(top) == ticks


@pytest.mark.parametrize("top", [0.0013, 1.01, 1.99, 2.01, 4.99, 5.01, 9.99, 12345.6])
def test_every_scale_has_a_few_steps(top: float) -> None:
    ticks = ticks_to(top)
    assert ticks[-1] >= top > ticks[-2]
    assert 2 <= len(ticks) <= 6


def test_boxes_lie_where_their_values_are_on_a_log_scale() -> None:
    """From 100 ms to 10 s is two decades: 1 s lies in the middle, equal values do not divide by zero."""
    drawn = boxes("TTFT", [(0, "run", box(100, 1000, 1000, 1000, 10_000, 10_000, 1000))], "s", 0.001)
    assert '<line x1="14.0" x2="626.0"' in drawn
    assert '<line x1="320.0" x2="320.0"' in drawn
    assert re.search(r'<text x="320.0" [^>]*>1</text>', drawn)
    assert "p99 10.000 s" in drawn
    assert "nan" not in boxes("TTFT", [(0, "run", box(*[50] * 7))], "s", 0.001)
    assert boxes("TTFT", [(0, "run", box(*[0] * 7))], "s", 0.001)


def test_lines_share_the_scale_and_the_time_of_all() -> None:
    line = Line("run", [0.0, 50.0, 100.0], [0.0, 5.0, 10.0])
    drawn = over_time("Waiting, us", [line], 20, Scene(200.0, 10.0, [(50.0, 60.0)]))
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    assert points == "40.0,106.0 113.5,81.5 187.0,57.0"
    assert drawn.count("<rect class=fault") == drawn.count("<rect class=warm") == 1
    assert 'aria-label="Waiting, us: run at most 10"' in drawn


def test_long_times_are_told_in_minutes_and_hours() -> None:
    assert (clock(75, 150), clock(300, 600), clock(43_200, 86_400)) == ("75 s", "5 min", "12 h")
