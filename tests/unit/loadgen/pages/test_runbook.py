from __future__ import annotations

import re

from loadgen.pages.runbook import PAGE, ROOT, current, page_of, sections_of
from mesh.problems import Runbook

FIRST = """# Alerts

## The gateway

### NightsideDown

Restart it: [engines.md](engines.md#x), or see [the other](#nightsideup) and [none](#nothing).

### NightsideUp

Nothing, for `a < b`.

## Other

### Something else

No alert.
"""


def test_the_page_is_the_one_that_belongs_to_the_documentation() -> None:
    assert PAGE.read_text() == current(), "run `make runbook-page`"


def test_every_problem_that_has_a_runbook_leads_to_a_heading() -> None:
    headings = set(re.findall(r'<h2 id="(\w+)">', PAGE.read_text()))
    views = (ROOT / "gateway/features").rglob("status.py")
    of_features = {name for view in views for name in re.findall(r'"(Nightside\w+)"', view.read_text())}
    assert {"NightsideLockdown", "NightsidePricesRefused"} <= of_features
    assert {each.lower() for each in (*Runbook, *of_features)} <= headings


def test_sections_are_the_headings_of_alerts_and_two_texts_on_one_are_both_kept() -> None:
    found = sections_of([FIRST, "### NightsideUp\n\nMore.\n"])
    assert list(found) == ["NightsideDown", "NightsideUp"]
    assert found["NightsideUp"] == "Nothing, for `a < b`.\n\nMore."


def test_only_links_within_the_page_stay_links() -> None:
    page = page_of(sections_of([FIRST]), ["docs/x.md"])
    assert re.findall(r'<a href="([^"]+)"', page) == ["#nightsideup"]
    assert "<cite>engines.md</cite>" in page
    assert "a &lt; b" in page
