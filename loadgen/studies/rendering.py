"""Renders a study's page in Markdown from the template in its folder. Templates lay out, with figures and texts that
are computed before or by a filter; a name that a template lacks is an error."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from loadgen.pages.markdown import NOTHING, bullets, listed, table
from loadgen.studies import numbers

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


def render(template: str, **values: object) -> str:
    """Text of a template beneath this folder, such as `resume/page.j2`."""
    return _environment().get_template(template).render(**values)


def render_text(text: str, **values: object) -> str:
    """Text of a template that is given itself."""
    return _environment().from_string(text).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - with the first page

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=False,  # noqa: S701 - Markdown of the project's own figures
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "f": _formatted,
        "percent": percent,
        "signed": signed,
        "row": _row,
        "shortened": shortened,
        "listed": listed,
        "bullets": bullets,
        "capital": _capital,
        "geometric": _geometric,
    }
    made.globals |= {"NOTHING": NOTHING, "table": table, "rule": _rule, "of": numbers}
    return made


def _formatted(value: object, form: str, sign: str = "") -> str:
    """Value by a format specification, behind a sign; a dash for a missing one."""
    return NOTHING if value is None else f"{sign}{value:{form}}"


def shortened(text: str, most: int = 160) -> str:
    """An error's text on one line, for a place between backquotes."""
    return " ".join(text.replace("`", "'").split())[:most]


def percent(value: float | None, digits: int = 1) -> str:
    """Share in percent, with the space that the pages have; a dash for a missing one."""
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def signed(share: float) -> str:
    """Change in percent, with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "−")


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _rule(columns: int) -> str:
    """Rule beneath the head of a table, whose first column is aligned left."""
    return _row([":--", *["--:"] * (columns - 1)])


def _geometric(ratios: Iterable[float]) -> float:
    return geometric_mean(list(ratios))


def _capital(words: str) -> str:
    """Words with a capital letter first."""
    return words[:1].upper() + words[1:]
