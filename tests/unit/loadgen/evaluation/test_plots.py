"""Plots are whole SVG files, whatever they are given."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from loadgen.evaluation.plots import Line, bars, boxes, lines

BOX = {"p10": 100.0, "p25": 200.0, "p50": 400.0, "p75": 900.0, "p90": 5000.0, "mean": 1200.0}
SVG = "{http://www.w3.org/2000/svg}"


def elements(svg: str, tag: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{SVG}{tag}")


def test_every_name_has_its_row_and_every_box_its_parts() -> None:
    svg = boxes(("TTFT", "whole"), [("a & b", [BOX, BOX]), ("c", [BOX, None])], "about")
    names = [each.text for each in elements(svg, "text") if each.get("class") == "name"]
    assert names == ["a & b", "c"]
    assert len(elements(svg, "rect")) == 3


def test_a_longer_time_lies_further_to_the_right() -> None:
    later = {key: 2 * value for key, value in BOX.items()}
    svg = boxes(("TTFT",), [("a", [BOX]), ("b", [later])], "about")
    first, second = (float(each.get("x") or 0) for each in elements(svg, "rect"))
    assert first < second


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars(("requests",), [("a", [10.0]), ("b", [5.0]), ("c", [None])], "about")
    first, second = (float(each.get("width") or 0) for each in elements(svg, "rect"))
    assert abs(first - 2 * second) < 0.2


def test_a_curve_has_a_dot_for_each_point() -> None:
    svg = lines("t", [Line("a", [(1, 2.0), (2, 4.0)]), Line("b", [(1, 0.0)])], "x", "y", "about")
    assert len(elements(svg, "circle")) == 3
    assert len(elements(svg, "polyline")) == 2


def test_it_follows_the_reader_s_scheme() -> None:
    assert "prefers-color-scheme: dark" in bars(("r",), [("a", [1.0])], "about")
