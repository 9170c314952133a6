"""Documentation of terraform/ is true: each module's tables, and the links of pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.readme_tables import readmes, with_tables
from tests.deploy.terraforming import TERRAFORM

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("readme", [*readmes()], ids=lambda path: str(path.parent.relative_to(TERRAFORM)))
def test_it_tells_all_variables_and_outputs(readme: Path) -> None:
    assert readme.read_text() == with_tables(readme), "python -m tests.deploy.readme_tables"


def test_what_pages_lead_to_is_there() -> None:
    links = [(page, link) for page in TERRAFORM.rglob("*.md") for link in LINK.findall(page.read_text())]
    assert len(links) > 20
    assert [(str(page), link) for page, link in links if "://" not in link and not (page.parent / link).exists()] == []
