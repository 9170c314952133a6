"""Scales hold the values they show, marks lie at their values, and long lines are shortened without losing peaks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from loadgen.pages.drawing import (
    COLOURS,
    POINTS_MAX,
    Bars,
    Boxes,
    Line,
    Picture,
    Scene,
    clock,
    lines,
    logarithmic,
    over_time,
    points_max,
    rows,
    sample,
    thinned,
    ticks_to,
)

NASTY = '"><script>x</script>'


def box(*values: float) -> dict[str, float]:
    return dict(zip(("p10", "p25", "p50", "p75", "p90", "mean"), values, strict=True))


def elements(picture: Picture, tag: str) -> list[ET.Element]:
    return ET.fromstring(f"<svg>{picture.marks}</svg>").findall(f".//{tag}")


def number(element: ET.Element, attribute: str) -> float:
    return float(element.attrib[attribute])


def texts(picture: Picture, kind: str | None = None) -> list[str | None]:
    return [each.text for each in elements(picture, "text") if each.get("class") == kind]


def test_a_line_is_thinned_to_its_peaks_or_its_means() -> None:
    line = Line("run", [(float(at), 7.0 if at == 500 else 0.0) for at in range(1000)])
    peaks, means = (list(zip(*thinned(line, 100, peaks=each).points, strict=True)) for each in (True, False))
    assert len(peaks[0]) == 100
    assert (max(peaks[1]), max(means[1])) == (7.0, 0.7)
    assert (peaks[0][0], peaks[0][50]) == (4.5, 504.5)
    assert thinned(line, 1000, peaks=True) is line
    assert len(thinned(line, 999, peaks=True).points) == 500


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


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.3, 4, [0.2, 0.5, 1, 2, 5]), (60, 90, [50, 60, 70, 80, 90, 100]), (0.02, 400, [0.1, 1, 10, 100])],
)
def test_a_log_scale_names_fewer_values_the_more_decades_it_has(low: float, high: float, ticks: list[float]) -> None:
    assert logarithmic(low, high, 0, 1).ticks == pytest.approx(ticks)


def test_boxes_lie_where_their_values_are_on_a_log_scale() -> None:
    """The range from 0.1 s to 10 s is two decades: 1 s lies in the middle; equal values do not divide by zero."""
    drawn = rows("TTFT", ["run"], [Boxes("", "s", [box(0.1, 1, 1, 1, 10, 1)])], names_above=True)
    whiskers, median = [each for each in elements(drawn, "line") if each.get("class") != "grid"]
    assert (number(whiskers, "x1"), number(whiskers, "x2")) == (14, 626)
    assert number(median, "x1") == number(median, "x2") == 320
    assert {each.text for each in elements(drawn, "text") if each.get("x") == "320"} == {"1"}
    assert next(each.text for each in elements(drawn, "title")) == (
        "run: p10 0.100 s, p25 1.000 s, p50 1.000 s, p75 1.000 s, p90 10.000 s, mean 1.000 s"
    )
    for value in (0.05, 0.0):
        marks = rows("TTFT", ["run"], [Boxes("", "s", [box(*[value] * 6)])]).marks
        assert not re.search("nan|inf", marks)


def test_every_name_has_its_row_and_every_panel_its_marks() -> None:
    early, late = box(1, 2, 3, 4, 5, 3), box(2, 4, 6, 8, 10, 6)
    drawn = rows(
        "All", ["a", "b", "c"], [Boxes("TTFT", "s", [early, late, None]), Boxes("whole", "s", [late, None, None])]
    )
    assert texts(drawn, "name") == ["a", "b", "c"]
    assert texts(drawn, "title") == ["TTFT", "whole"]
    first, second, other = elements(drawn, "rect")
    assert number(first, "x") < number(second, "x") < number(other, "x")
    assert number(first, "y") == number(other, "y") < number(second, "y")
    assert drawn.about == "All. TTFT: a median 3 s; b median 6 s. whole: a median 6 s"


def test_bars_are_as_long_as_their_values_and_longest_at_the_same_place_on_a_log_scale() -> None:
    values = [10.0, 5.0, None]
    drawn = rows("Load", ["a", "b", "c"], [Bars("requests", values), Bars("waits", values, is_log=True)])
    whole, half, longest, shorter = (number(each, "width") for each in elements(drawn, "rect"))
    assert whole == longest
    assert half == pytest.approx(whole / 2, abs=0.1)
    assert 1 < shorter < longest
    assert {"10", "5"} < set(texts(drawn))
    assert drawn.about == "Load. requests: a 10; b 5. waits: a 10; b 5"


def test_a_panel_without_figures_is_left_empty() -> None:
    drawn = rows("Load", ["a"], [Bars("requests", [None]), Boxes("TTFT", "s", [None])])
    assert texts(drawn, "name") == ["a"]
    assert not elements(drawn, "rect")
    assert not texts(drawn)


def test_a_curve_has_a_dot_for_each_point_and_a_line_in_the_key() -> None:
    drawn = lines("t", [Line("a", [(1, 2.0), (2, 4.0)]), Line("b", [(1, 0.0)])], "x", "y")
    assert len(elements(drawn, "circle")) == 3
    assert len(elements(drawn, "polyline")) == 2
    assert texts(drawn, "name") == ["a", "b"]
    assert drawn.about == "t: a at most 4; b at most 0"
    assert texts(lines("t", [], "x", "y"), "title") == ["t"]


def test_colours_that_begin_again_are_dashed() -> None:
    first, again = (elements(sample(each), "line")[0] for each in (0, COLOURS))
    assert first.get("stroke") == again.get("stroke")
    assert first.get("stroke-dasharray") is None
    assert again.get("stroke-dasharray") is not None


def test_lines_share_the_scale_and_the_time_of_all() -> None:
    line = Line("run", [(0.0, 0.0), (50.0, 5.0), (100.0, 10.0)])
    drawn = over_time("Waiting, us", [line], 20, Scene(200.0, 10.0, [(50.0, 60.0)]))
    (curve,) = elements(drawn, "polyline")
    assert curve.get("points") == "40.0,106.0 113.5,81.5 187.0,57.0"
    assert [each.get("class") for each in elements(drawn, "rect")] == ["fault", "warm"]
    assert drawn.about == "Waiting, us: run at most 10"


def test_long_times_are_told_in_minutes_and_hours() -> None:
    assert (clock(75, 150), clock(300, 600), clock(43_200, 86_400)) == ("75 s", "5 min", "12 h")


def test_no_name_becomes_markup() -> None:
    drawn = [
        rows(NASTY, [NASTY], [Boxes(NASTY, NASTY, [box(*[1] * 6)]), Bars(NASTY, [1.0])]),
        lines(NASTY, [Line(NASTY, [(0, 1)])], NASTY, NASTY),
        over_time(NASTY, [Line(NASTY, [(0, 1)])], 1, Scene(1.0, 0.0, [])),
    ]
    for picture in drawn:
        assert "<script" not in picture.marks
        assert not elements(picture, "script")
