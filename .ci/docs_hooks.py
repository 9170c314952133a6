"""Links of the documentation site to other files: each file must exist in the repository; its link becomes plain text.

Links to folders of `docs/` lead to the README there, where the folder has one.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LOG = logging.getLogger("mkdocs.hooks.links")
_FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Text of a page whose links all lead to pages of the site; each broken one is a warning, which fails the build."""
    source = page.file.src_uri
    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _rewritten(part, source) for part in parts)


def _rewritten(text: str, source: str) -> str:
    text = _DEFINITION.sub(lambda found: f"[{found[1]}]: {_on_the_site(found[2], source) or '#'}", text)
    return _LINK.sub(lambda found: _link(found[1], found[2], source), text)


def _link(label: str, target: str, source: str) -> str:
    leads_to = _on_the_site(target, source)
    return f"[{label}]({leads_to})" if leads_to else label


def _on_the_site(target: str, source: str) -> str | None:
    """Target of a link as a page of the site, or None where it is no part of the site."""
    path, _, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    folder = (DOCS / source).parent
    file = Path(os.path.normpath(folder / path))
    if not file.exists():
        LOG.warning("%s: %s leads to no file", source, target)
        return None
    if file.is_dir() and (file / "README.md").exists():
        file /= "README.md"
    if file.is_dir() or not file.is_relative_to(DOCS) or file.suffix in {".py", ".toml", ".json"}:
        return None
    return os.path.relpath(file, folder) + (f"#{anchor}" if anchor else "")
