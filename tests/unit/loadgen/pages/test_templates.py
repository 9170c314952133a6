"""Values given to a template are escaped, and a missing one is an error rather than a gap."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from loadgen.pages.drawing import Bars, Picture, rows
from loadgen.pages.templates import picture_file, render

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_s_file_is_whole_and_follows_the_reader_s_scheme() -> None:
    text = picture_file(rows("a & b", ["c"], [Bars("requests", [1.0])]))
    svg = ET.fromstring(text)
    assert svg.attrib["aria-label"] == "a & b. requests: c 1"
    assert svg.attrib["viewBox"] == f"0 0 {svg.attrib['width']} {svg.attrib['height']}"
    assert "prefers-color-scheme: dark" in text
    assert svg.findall(f".//{SVG}rect")


def test_words_are_escaped_and_markup_is_not() -> None:
    text = picture_file(Picture(1, 1, '"<b>', Markup("<g/>")))
    assert 'aria-label="&#34;&lt;b&gt;"' in text
    assert "<g/>" in text


def test_what_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        render("sweep.html")
