"""Makes the runbook that gateways and controllers serve themselves, `mesh/page/assets/runbook.html`, from the sections
on alerts in the documentation: an operator needs it most where nothing else can be reached. `make runbook-page` writes
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SOURCES = ("docs/how_to/alerts.md", "docs/concepts/controller.md")
PAGE = ROOT / "mesh/page/assets/runbook.html"

_SECTION = re.compile(r"^### (Nightside\w+)\n(.*?)(?=^#{1,3} |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)
_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>Runbook · Nightside</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
<script src="theme.js"></script>
</head>
<body>
<header class="bar"><p class="brand">Nightside runbook</p></header>
<main class="runbook">
<h1>What to do about each problem</h1>
<p class="muted">{introduction}</p>
{sections}
</main>
</body>
</html>
"""


def sections_of(texts: Iterable[str]) -> dict[str, str]:
    """Markdown under each heading that names an alert, in the order of the texts. An alert that two texts describe has
    both descriptions."""
    found: dict[str, str] = {}
    for text in texts:
        for name, body in _SECTION.findall(text):
            found[name] = f"{found[name]}\n\n{body.strip()}" if name in found else body.strip()
    return found


def page_of(sections: dict[str, str], sources: Iterable[str]) -> str:
    """Page in HTML. Links to other pages of the documentation become plain text, since no process serves these."""
    markdown = MarkdownIt("commonmark").enable("table")
    known = {f"#{name.lower()}" for name in sections}

    def linked(found: re.Match[str]) -> str:
        return found[0] if found[1] in known else f"<cite>{found[2]}</cite>"

    bodies = {name: _LINK.sub(linked, markdown.render(body)) for name, body in sections.items()}
    parts = [
        f'<section class="panel"><h2 id="{name.lower()}">{name}</h2>\n{body}</section>' for name, body in bodies.items()
    ]
    where = " and ".join(sources)
    introduction = f"Each heading is an alert. The same text, with links to further pages, is in {where}."
    return _FRAME.format(introduction=introduction, sections="\n".join(parts))


def current() -> str:
    """Page that belongs to the documentation as it is."""
    return page_of(sections_of((ROOT / each).read_text() for each in SOURCES), SOURCES)


@click.command()
def main() -> None:
    """Write the runbook of the page."""
    PAGE.write_text(current())


if __name__ == "__main__":
    main()
