"""Tables and sentences of a page, as Markdown. It lays out what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.evaluation.numbers import Middle

NOTHING = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, figures to the right."""
    assert all(len(row) == len(head) for row in rows), "every row has every column"
    rule = [":--", *["--:"] * (len(head) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return "\n".join(lines) + "\n"


def number(middle: Middle | None, digits: int = 2) -> str:
    """A median, with how far the seeds went."""
    return NOTHING if middle is None else middle.shown(digits)


def times(middle: Middle | None, digits: int = 2) -> str:
    """A median ratio."""
    return NOTHING if middle is None else f"× {middle.median:.{digits}f}"


def spread_times(middle: Middle | None, digits: int = 2) -> str:
    """A median ratio, with how far the seeds went."""
    return NOTHING if middle is None else f"× {middle.shown(digits)}"


def percent(middle: Middle | None, digits: int = 1) -> str:
    return NOTHING if middle is None else f"{100 * middle.median:.{digits}f} %"


def seconds_of(middle: Middle | None) -> str:
    """Three figures that count."""
    if middle is None:
        return NOTHING
    return f"{middle.median:.2f}" if middle.median < 10 else f"{middle.median:.1f}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"
