"""Documentation site: every page is in its navigation, and the check of links finds broken ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def checked(root: Path) -> subprocess.CompletedProcess[str]:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return subprocess.run([root / ".ci/links"], capture_output=True, text=True, check=False)


def project(root: Path, page: str) -> Path:
    (root / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/links", root / ".ci/links")
    (root / "page.md").write_text(page)
    (root / "other.md").write_text("# A `heading` of two\n\n## Again\n\n## Again\n\n```sh\n# no heading\n```\n")
    return root


def test_links_to_files_and_headings_that_exist_pass(tmp_path: Path) -> None:
    page = "# Top\n\n[a](other.md) [b](other.md#a-heading-of-two) [c](other.md#again-1) [d](#top) [e](https://a.invalid/)\n"

    done = checked(project(tmp_path, page))

    assert (done.returncode, done.stdout) == (0, "")


def test_broken_links_are_listed(tmp_path: Path) -> None:
    page = "[a](nothing.md) [b](other.md#no-heading) [c](#top)\n\n[d]: gone.md\n"

    done = checked(project(tmp_path, page))

    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "page.md: nothing.md leads to no file",
        "page.md: other.md#no-heading leads to no heading",
        "page.md: #top leads to no heading",
        "page.md: gone.md leads to no file",
    ]


def test_the_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)

    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


WITHOUT_A_PICTURE = {"complaints.md", "security.md", "token_budget.md"}
"""Pages of tables and promises."""


def test_every_concept_has_one_picture() -> None:
    """Pictures are of text, so that they show on the site, in a terminal and in a diff alike."""
    pages = {page.name: page.read_text().count("\n```text\n") for page in (ROOT / "docs/concepts").glob("*.md")}

    assert pages.keys() > WITHOUT_A_PICTURE
    assert {name: count for name, count in pages.items() if count != 1} == dict.fromkeys(WITHOUT_A_PICTURE, 0)


WITHOUT_AN_EXAMPLE = {
    "complaints.md",
    "controller_file.md",
    "glossary.md",
    "handoff.md",
    "region_file.md",
    "security.md",
}
"""Pages of which each table row or promise is the example, or names it."""


def test_every_page_says_what_it_is_for_and_shows_an_example_first() -> None:
    """Tests of test_pages.py and test_page_examples.py run or read the examples."""
    folders = ("get_started", "how_to", "concepts", "reference")
    pages = [page for folder in folders for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
    assert len(pages) > 40

    for page in pages:
        title, purpose, *rest = page.read_text().split("\n\n")
        beginning = "\n\n".join(rest).split("\n## ")[:2]
        assert re.fullmatch(r"# .+", title), page
        assert re.match(r"(?!```)[\w`\[]", purpose), page
        assert page.name in WITHOUT_AN_EXAMPLE or re.search(r"^(```|    \S|!\[)", "\n".join(beginning), re.MULTILINE), (
            page
        )


GENERATED = {
    "command_line.md",
    "controller_file.md",
    "controller_metrics.md",
    "errors.md",
    "log_events.md",
    "metrics.md",
    "region_file.md",
}


def test_every_page_ends_with_its_limits() -> None:
    folders = ("get_started", "how_to", "concepts", "reference")
    pages = [page for folder in folders for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
    last = {page.name: re.findall(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)[-1:] for page in pages}

    assert last.keys() > GENERATED
    assert {name for name, heading in last.items() if heading != ["Limits"]} == GENERATED
