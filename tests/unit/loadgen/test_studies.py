"""Pages come out byte for byte as recorded. `python -m tests.support.study_pages` records them anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.study_pages import MAKERS, RECORD, Pages, digests


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_a_page_is_what_it_was(maker: Callable[[Path], Pages], tmp_path: Path) -> None:
    pages = maker(tmp_path)
    recorded = json.loads(RECORD.read_text())[maker.__name__]
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert dict(digests(pages)) == recorded, f"the pages are in {tmp_path}"
