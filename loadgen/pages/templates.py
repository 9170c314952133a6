"""The one template engine of all pages. All values are escaped, except markup by type.

Templates only lay out; figures and texts are computed before. A name that a template lacks is an error.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from loadgen.pages.drawing import Picture

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values) + "\n"


def picture_file(picture: Picture) -> str:
    """Picture as a file of its own, which follows its reader's light or dark scheme."""
    return render("picture.svg", picture=picture)


@cache
def _environment() -> Environment:
    """Environment that is imported with the first page, so that a run without pages does not wait for it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    return Environment(
        loader=PackageLoader("loadgen.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
