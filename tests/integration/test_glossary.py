"""Terms of the glossary are explained once each, in one sentence, and the names that define them exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)`(?: `(\w+)`)? \|$", flags=re.MULTILINE)
TEXT = (ROOT / "docs/reference/glossary.md").read_text()
TERMS: list[tuple[str, str, str, str]] = ROW.findall(TEXT)


def test_every_row_is_a_term_and_no_term_stands_twice() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| term", "| ---"))]
    assert len(TERMS) == len(rows)
    assert len(TERMS) >= 80
    assert len({term for term, *_ in TERMS}) == len(TERMS)


def test_a_meaning_is_one_sentence() -> None:
    for term, meaning, _, _ in TERMS:
        assert re.fullmatch(r"[A-Z].*\.", meaning), term
        assert not re.search(r"[.!?] ", meaning), term


def test_a_term_is_defined_where_the_glossary_says() -> None:
    for term, _, file, name in TERMS:
        definition = rf"^ *(class {name}\b|def {name}\b|{name}(: [^=]+)?( =|$)|{name}:)" if name else ""
        assert re.search(definition, (ROOT / file).read_text(), flags=re.MULTILINE), f"{term}: no {name} in {file}"
