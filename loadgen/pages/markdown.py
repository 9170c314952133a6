"""Formats tables and lists of Markdown pages. It lays out what it is given."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table with the first column aligned left and figures aligned right."""
    assert all(len(row) == len(head) for row in rows), "every row has every column"
    rule = [":--", *["--:"] * (len(head) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return "\n".join(lines) + "\n"


def listed(words: Sequence[str]) -> str:
    """Words joined as "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def between(numbers: Sequence[float]) -> str:
    """The least and the greatest number with one decimal, as "0.9–2.1"; one number if both read alike."""
    if not numbers:
        return NOTHING
    least, greatest = f"{min(numbers):.1f}", f"{max(numbers):.1f}"
    return least if least == greatest else f"{least}–{greatest}"


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"
