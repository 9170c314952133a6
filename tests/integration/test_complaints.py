from __future__ import annotations

import re

from tests.support.named_tests import ROOT, is_there, named_on

PAGE = (ROOT / "docs/concepts/complaints.md").read_text()
SECTIONS = re.split(r"^## ", PAGE.partition("\n## Limits\n")[0], flags=re.MULTILINE)[1:]
NAMED = named_on(PAGE)


def test_there_are_twelve_and_each_names_its_tests() -> None:
    assert [section.split(".")[0] for section in SECTIONS] == [str(number) for number in range(1, 13)]
    assert all("\n- `tests/" in section for section in SECTIONS)
    assert PAGE.count("\n- ") == len(NAMED), "each entry is one test and nothing else"


def test_tests_that_are_named_are_there() -> None:
    assert [test for test in NAMED if not is_there(test)] == []
